/* SPDX-License-Identifier: Apache-2.0 */
/* Each SIMD decoder includes this after its join_slab, an always-inlined function whose last three arguments must be
 * constants. */

/* One instance of the loop for each pair of constants that a codec needs. */
static void join_by_codec(const trf_join_rule *rule, const join_constants *k, const trf_slab_io *io,
                          const trf_simd_scratch *scratch) {
    const uint32_t c = rule->class_bits;
    switch (rule->out * 4 + rule->num_fields) {
    case TRF_OUT_UNDER_PLANE * 4 + 0:
        join_slab(k, io, scratch, c, TRF_OUT_UNDER_PLANE, 0);
        break;
    case TRF_OUT_UNDER_PLANE * 4 + 1:
        join_slab(k, io, scratch, c, TRF_OUT_UNDER_PLANE, 1);
        break;
    case TRF_OUT_UNDER_PLANE * 4 + 2:
        join_slab(k, io, scratch, c, TRF_OUT_UNDER_PLANE, 2);
        break;
    case TRF_OUT_BYTE * 4 + 1:
        join_slab(k, io, scratch, c, TRF_OUT_BYTE, 1);
        break;
    case TRF_OUT_BYTE * 4 + 2:
        join_slab(k, io, scratch, c, TRF_OUT_BYTE, 2);
        break;
    case TRF_OUT_CODE * 4 + 0:
        join_slab(k, io, scratch, c, TRF_OUT_CODE, 0);
        break;
    case TRF_OUT_CODE * 4 + 1:
        join_slab(k, io, scratch, c, TRF_OUT_CODE, 1);
        break;
    case TRF_OUT_CODE * 4 + 2:
        join_slab(k, io, scratch, c, TRF_OUT_CODE, 2);
        break;
    case TRF_OUT_CODE * 4 + 3:
        join_slab(k, io, scratch, c, TRF_OUT_CODE, 3);
        break;
    default:
        join_slab(k, io, scratch, c, TRF_OUT_PLANE8_CODE, 0);
        break;
    }
}
