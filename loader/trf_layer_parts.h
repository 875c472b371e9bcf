/* SPDX-License-Identifier: Apache-2.0 */
/* What each of several GPUs has of a tensor under tensor parallelism, as far as the tensor's name says, and what a
 * matrix takes of device memory in each layout. */
#ifndef TRF_LAYER_PARTS_H
#define TRF_LAYER_PARTS_H

#include "transfuse/layouts.h"

/* The part of a matrix that the GPU with the most has. */
typedef struct trf_layer_part {
    uint64_t rows, cols;
    double tiles; /* the share of the matrix's tiles of 256x256 that the part touches */
} trf_layer_part;

/* kv_heads: of the model; 0 if not known. is_expert: one of the matrices of a mixture. */
trf_layer_part trf_layer_part_find(const char *name, uint64_t rows, uint64_t cols, int is_expert, uint32_t gpus,
                                   uint64_t kv_heads);

/* @return the last part of a tensor's name without ".weight", which is `length` bytes long. */
const char *trf_name_last_part(const char *name, size_t *length);

/* @return whether the last part of a tensor's name is that of the second of two matrices in a row, such as down_proj;
 * and whether it is that of gate and up in one matrix. */
int trf_name_is_second(const char *name);
int trf_name_is_gate_up(const char *name);

/* @return whether the name ends in a bias's. */
int trf_name_is_bias(const char *name);

/* @return the bytes of a part as a packed layer without stored tiles, as nearly all are; as a packed FP8 layer; and as
 * a plain one. */
uint64_t trf_packed_part_bytes(const trf_layer_part *part);
uint64_t trf_packed8_part_bytes(const trf_layer_part *part);
uint64_t trf_plain_part_bytes(const trf_layer_part *part);

/* @return the bytes of a coded layer's directory on a GPU. info: of the layer; zeros where it is not known, which stand
 * for the defaults. */
uint64_t trf_coded_part_directory_bytes(const trf_layer_part *part, const trf_layer_info *info);

#endif
