/* SPDX-License-Identifier: Apache-2.0 */
/* Where libraries are found that are opened at run time. Nothing here knows a folder of the machine of the build. */
#ifndef TRF_LIBRARY_SEARCH_H
#define TRF_LIBRARY_SEARCH_H

/* Opens a library by its soname: the one that the process has loaded already, or where the dynamic linker looks; and
 * else, where transfuse is a Python package, in one of these folders of the packages beside it. folders: relative to
 * site-packages, NULL-terminated. @return NULL: dlerror() says why not by the soname. */
void *trf_open_library(const char *soname, const char *const *folders);

/* The second step. own_path: of the library or program that this code is in. Its folder, links followed, is that of the
 * Python package if it ends with transfuse/lib. @return NULL: it is not, or no folder has it. */
void *trf_open_library_beside(const char *own_path, const char *soname, const char *const *folders);

#endif
