/* SPDX-License-Identifier: Apache-2.0 */
/* Side tables: tensors of scales beside FP8 weights. A compressed file has them in its __metadata__, where no loader
 * takes them for tensors, and decompressing writes them again (FORMAT.md, section 10). */
#ifndef TRF_SIDE_TABLES_H
#define TRF_SIDE_TABLES_H

#include "trf_file.h"
#include "trf_safetensors.h"

#define TRF_METADATA_SIDE_TABLES "transfuse_side_tables"
#define TRF_METADATA_SIDE_TABLES_CHECKSUM "transfuse_side_tables_checksum"

typedef struct trf_side_table {
    const trf_tensor *source; /* as the source's header has it */
    uint8_t *data;            /* [trf_tensor_bytes(source)] */
    int is_used;              /* blobs have the same scales, for the weights that they are of */
} trf_side_table;

typedef struct trf_side_tables {
    trf_side_table *tables; /* in the source's order */
    size_t count;
    int has_checksum; /* else nobody can tell whether they have changed without the source */
} trf_side_tables;

/* Reads the side tables of a compressed file. own: its header; source: the one that it keeps, which must outlive
 * *tables. Release with trf_side_tables_free on success only. Errors: TRF_ERR_FORMAT (no JSON of the right form; a
 * table that is not in `source`, that `own` has, too, or whose text has not the tensor's size), TRF_ERR_CHECKSUM,
 * TRF_ERR_MEMORY. */
trf_status trf_side_tables_read(const trf_safetensors *own, const trf_safetensors *source, trf_side_tables *tables,
                                trf_error *err);
void trf_side_tables_free(trf_side_tables *tables);

/* @return the table of a tensor of the source's header, or NULL. tensor: or NULL. */
const trf_side_table *trf_side_tables_find(const trf_side_tables *tables, const trf_tensor *tensor);

/* Adds a source's tensor to the object that trf_side_tables_finish writes. in: the source's file; offset: of the tensor
 * in it. added: an object. Errors: TRF_ERR_IO, TRF_ERR_MEMORY. */
trf_status trf_side_tables_add(json_t *added, const trf_tensor *tensor, int is_used, const trf_file *in,
                               uint64_t offset, trf_error *err);

/* Puts what was added into a file's metadata, with a checksum; nothing if nothing was. Errors: TRF_ERR_MEMORY. */
trf_status trf_side_tables_finish(const json_t *added, json_t *metadata, trf_error *err);

#endif
