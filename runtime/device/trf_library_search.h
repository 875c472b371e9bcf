/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the libraries that are opened at run time. No folder of the build machine is known here. */
#ifndef TRF_LIBRARY_SEARCH_H
#define TRF_LIBRARY_SEARCH_H

/* Opens a library by its soname: the copy that the process has loaded already, or the one that the dynamic linker
 * finds. If there is none and transfuse is a Python package, it looks in these folders of the packages beside it.
 * folders: relative to site-packages, NULL-terminated. @return NULL on failure; dlerror() then says why the soname
 * alone did not work. */
void *trf_open_library(const char *soname, const char *const *folders);

/* Does only the second step. own_path: the library or program that contains this code. Its folder is the Python
 * package's if, with links resolved, it ends with transfuse/lib. @return NULL if it does not, or if no folder has the
 * library. */
void *trf_open_library_beside(const char *own_path, const char *soname, const char *const *folders);

#endif
