/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what is in a folder and below it: which entries belong to a checkpoint's tensors, which are carried over, and
 * which are left out. */
#ifndef TRF_TREE_H
#define TRF_TREE_H

#include "trf_job.h"

typedef enum trf_tree_kind {
    TRF_TREE_FILE = 0,
    TRF_TREE_FOLDER = 1,
    TRF_TREE_LINK = 2 /* a link that is made anew: it is relative and leads to something in the folder, or it leads
                       * nowhere */
} trf_tree_kind;

/* What is done with a symbolic link. */
typedef enum trf_link_action {
    TRF_LINK_REMAKE, /* it leads nowhere, or is relative and leads to something under root */
    TRF_LINK_FOLLOW, /* it leads out of the folder, or would lead back to it from the copy */
    TRF_LINK_LOOP    /* it leads to root or a folder around it, so following it would not end */
} trf_link_action;

trf_link_action trf_link_classify(const char *root, const char *path);

/* To whom an entry belongs. */
typedef enum trf_tree_owner {
    TRF_TREE_OTHERS = 0,
    TRF_TREE_KEPT = 1,     /* carried over, and never left out */
    TRF_TREE_REWRITTEN = 2 /* a file, an index or the config.json of a checkpoint */
} trf_tree_owner;

typedef trf_tree_owner trf_tree_owner_fn(const void *context, const char *path);

typedef struct trf_tree_entry {
    char *path; /* below the folder */
    char *link; /* the text of a link; else NULL */
    trf_tree_kind kind;
    trf_tree_owner owner;
    unsigned mode;
    uint64_t bytes;
    trf_file_stamp stamp; /* of a file, when it was listed */
} trf_tree_entry;

/* Files that are mentioned together: those below one folder, or all that are mentioned by their own names. */
typedef struct trf_file_group {
    char *name; /* of the folder, or of the first file */
    int is_folder;
    int asked; /* left out because options.skip_extra says so */
    uint64_t files, bytes;
} trf_file_group;

typedef struct trf_file_groups {
    trf_file_group *groups;
    size_t count;
} trf_file_groups;

typedef struct trf_tree {
    char *root;
    trf_tree_entry *entries; /* by name; a folder comes before what is in it */
    size_t count, capacity;
    trf_file_groups skipped;
} trf_tree;

/* Lists a folder. Links that lead out of it are followed. Entries that `skip` (globs, or NULL) or a name such as .git
 * leaves out are counted in `skipped`. owner: may be NULL. Release with trf_tree_free in every case. Errors:
 * TRF_ERR_IO, _UNSUPPORTED (neither file, folder nor link; too deep; a link to a folder around it), _NOT_FOUND (a glob
 * that leaves nothing out), _MEMORY. */
trf_status trf_tree_list(const char *root, const char *const *skip, trf_tree_owner_fn *owner, const void *context,
                         trf_tree *tree, trf_error *err);
void trf_tree_free(trf_tree *tree);

/* @return the entry with that path, or NULL. */
const trf_tree_entry *trf_tree_find(const trf_tree *tree, const char *path);

/* @return whether a name is never carried over: .git, and caches. */
int trf_name_is_unwanted(const char *name);

/* @return whether a glob matches a path, or a folder that it lies in. */
int trf_globs_match(const char *const *globs, const char *path);

/* @return whether a file's name is one of weights, such as model.pth. */
int trf_name_is_weights(const char *path);

/* @return whether a file that is carried over holds weights, judging by its name and size. */
int trf_tree_holds_weights(const trf_tree_entry *entry);

/* Counts a file in the group with a name, of `length` characters. file: what is counted. */
trf_status trf_file_groups_add(trf_file_groups *groups, const char *name, size_t length, const trf_file_group *file,
                               trf_error *err);
void trf_file_groups_free(trf_file_groups *groups);

/* Notes each group as "<what>: 47.1 GB in 4 files under original/", if its `asked` is this one and it has at least
 * least_bytes. */
void trf_file_groups_note(const trf_file_groups *groups, int asked, uint64_t least_bytes, const char *what,
                          trf_job *job);

/* Makes an entry anew below another folder, which exists. Folders can be written until trf_tree_finish_folders. A file
 * counts as progress. Errors: TRF_ERR_IO, _CANCELLED, _MEMORY. */
trf_status trf_tree_copy(const trf_tree *tree, const trf_tree_entry *entry, const char *folder, trf_job *job,
                         trf_error *err);

/* Gives the folders their final permissions, and makes them durable. */
trf_status trf_tree_finish_folders(const trf_tree *tree, const char *folder, trf_error *err);

#endif
