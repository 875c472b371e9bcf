/* SPDX-License-Identifier: Apache-2.0 */
/* What kind of source there is: one that is already quantized, as its config, files or tensors show, or one that is
 * not, whatever its scales look like; an adapter; a model that no framework knows; and which dtype transformers finds
 * in it. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_json.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static trf_error err;

#define COUNT(array) (int)(sizeof array / sizeof array[0])

/* A file of 32x64 tensors; dtypes[i] of names[i], up to four. */
static void write_tensors(const char *path, const char *const names[4], const char *const dtypes[4],
                          const char *metadata) {
    fixture_tensor tensors[5] = {{"other.weight", "BF16", {64, 64}, 2, 0}};
    size_t count = 1;
    for (; count <= 4 && names[count - 1]; count++)
        tensors[count] = (fixture_tensor){names[count - 1], dtypes[count - 1], {32, 64}, 2, 0};
    fixture_write_safetensors(path, metadata, tensors, count, 8, 3);
}

/* Compresses, and expects a refusal that says `found`, or success if that is NULL. With store_only both succeed, bit
 * for bit. */
static void check_kind(const char *source, const char *found) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.overwrite = 1;
    const char *out = fixture_path("out%s", strrchr(source, '.') > strrchr(source, '/') ? ".safetensors" : ""),
               *back = fixture_path("back%s", strrchr(source, '.') > strrchr(source, '/') ? ".safetensors" : "");
    const trf_status status = trf_compress_checkpoint(source, out, &options, NULL, &err);
    fixture_check_status(status, found ? TRF_ERR_UNSUPPORTED : TRF_OK, &err);
    if (found) {
        ck_assert_msg(strstr(err.message, found) && strstr(err.message, "--store-only") &&
                          strncmp(err.message, source, strlen(source)) == 0,
                      "%s", err.message);
        ck_assert(!fixture_exists(out));
    }
    options.store_only = 1;
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(source, out, &options, &report, &err), TRF_OK, &err);
    ck_assert_msg(strstr(report.warning, "stored only") != NULL, "%s", report.warning);
    ck_assert_uint_ge(report.compressed_tensors, 1);
    fixture_check_status(trf_verify_checkpoint(out, source, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_decompress_checkpoint(out, back, &options, NULL, &err), TRF_OK, &err);
    fixture_check_same(source, back);
}

/* ---- by tensors ---- */

static const struct {
    const char *names[4], *dtypes[4];
    const char *found; /* NULL: not quantized */
} kTensors[] = {
    {{"a.qweight", "a.qzeros", "a.scales", "a.g_idx"}, {"I32", "I32", "F16", "I32"}, "a.qweight"},
    {{"a.weight_packed", "a.weight_scale"}, {"I32", "BF16"}, "a.weight_packed"},
    {{"a.weight", "a.weight_scale_inv"}, {"F8_E4M3", "F32"}, "weight_scale_inv"},
    {{"a.weight", "a.weight_scale"}, {"F8_E4M3", "BF16"}, "weight_scale"},
    {{"a.weight", "a.weight_scale", "a.input_scale"}, {"I8", "F32", "F32"}, "weight_scale"},
    {{"a.weight", "a.weight_scale"}, {"U8", "F8_E4M3"}, "weight_scale"},
    {{"a.weight", "a.weight.absmax", "a.weight.quant_state.bitsandbytes__nf4"}, {"U8", "F32", "U8"}, "'a.weight."},
    {{"a.weight", "a.SCB"}, {"I8", "F32"}, "a.SCB"},
    {{"mlp.experts.down_proj_blocks", "mlp.experts.down_proj_scales"}, {"U8", "U8"}, "down_proj_scales"},
    {{"mlp.experts.down_proj", "mlp.experts.down_proj_scale"}, {"F8_E4M3", "BF16"}, "down_proj_scale"},
    {{"a.weight", "a.scales", "a.biases"}, {"U32", "BF16", "BF16"}, "a.scales"},
    {{"a.weight._data", "a.weight._scale"}, {"I8", "BF16"}, "_scale"},
    {{"a.W_q", "a.scale", "a.zero"}, {"U8", "F16", "F16"}, "a."},
    {{"a.q_weight", "a.q_scale"}, {"I32", "I32"}, "a.q_weight"},
    {{"scale", "weight"}, {"F32", "F8_E5M2"}, "'scale'"},
    {{"mlp1_weight.blocks", "mlp1_weight.scales"}, {"U8", "U8"}, "mlp1_weight.scales"},
    {{"a.codes", "a.codebooks", "a.scales"}, {"I8", "F16", "F16"}, "a.codebooks"},
    {{"decoder.codes", "decoder.scale"}, {"I32", "F32"}, NULL},
    {{"a.Qidxs", "a.SU", "a.SV"}, {"I64", "F16", "F16"}, "a.SU"},
    {{"a.Qidxs", "a.SU", "a.SV"}, {"I16", "F16", "F16"}, "a."},
    {{"a.Qidxs_0", "a.Qidxs_1", "a.SU", "a.SV"}, {"I16", "I16", "F16", "F16"}, "a.SU"},
    {{"a.weight:qdata", "a.weight:scale"}, {"I8", "F32"}, "a.weight:scale"},
    {{"a.weight", "a.scale_weight", "scaled_fp8"}, {"F8_E4M3", "F32", "F8_E4M3"}, "scale"},
    {{"a.weight", "a.scale_weight", "a.scale_input"}, {"F8_E4M3", "F32", "F32"}, "a.scale_weight"},
    {{"a._weight_qdata", "a._weight_scale", "a._weight_zero_point"}, {"I8", "F32", "I8"}, "a._weight_"},
    {{"a.weight._data._data", "a.weight._scale", "a.weight._shift"}, {"U8", "BF16", "BF16"}, "_data._data"},
    {{"a.weight", "a.dequant_scale"}, {"I8", "F32"}, "a.dequant_scale"},
    {{"a.weight", "a.qscale_weight", "a.qscale_act"}, {"F8_E4M3", "BF16", "BF16"}, "a.qscale_weight"},
    {{"a.weight", "a.comfy_quant"}, {"F8_E4M3", "U8"}, "a.comfy_quant"},
    {{"a.centroids.weight", "a.indices", "a.perm"}, {"BF16", "I32", "I16"}, "a.centroids.weight"},
    {{"a.dense_weights", "a.row_offsets", "a.col_vals", "a.in_perm"}, {"I64", "I32", "I32", "I32"}, "a.row_offsets"},
    {{"a.B", "a.s"}, {"I32", "F16"}, "a.s"},
    {{"a.B_24", "a.B_meta", "a.s"}, {"I32", "I16", "F16"}, "a.s"},
    {{"a.B", "a.s_channel", "a.s_group"}, {"I32", "F32", "F16"}, "a.s_channel"},
    {{"a.weight", "a.weight_quantizer._amax", "a.input_quantizer._amax"}, {"BF16", "F32", "F32"}, "a.weight_quant"},
    {{"a.weight", "a._weight_quantizer._amax"}, {"F16", "F32"}, "a._weight_quantizer._amax"},
    {{"a.weight"}, {"F4"}, "F4"},
    {{"a.s"}, {"F8_E8M0"}, "F8_E8M0"},
    /* parameters that a model has learned, and types without a scale */
    {{"a.weight", "a.scale", "logit_scale", "a.layer_scale"}, {"BF16", "BF16", "F32", "BF16"}, NULL},
    {{"a.weight", "a.weight_scale"}, {"BF16", "BF16"}, NULL},
    {{"model.layers.0.layer_scalar", "norm.scale", "embed_scale", "scale"}, {"BF16", "F32", "F32", "F32"}, NULL},
    {{"a.weight", "b.weight"}, {"F8_E4M3", "I8"}, NULL},
    {{"a.weight", "b.weight_scale", "scales"}, {"F8_E4M3", "F32", "F32"}, NULL},
    {{"a.weight", "a.scale_weight"}, {"BF16", "F32"}, NULL},
    {{"position_ids", "position_scale", "a.bias_scale"}, {"I64", "F32", "F32"}, NULL},
    {{"temperature_scale", "grayscale", "a.upscale", "a.autoscale"}, {"F32", "U8", "F32", "F32"}, NULL},
    {{"a.W_q", "a.q_weight", "a.q_scale", "a.trellis"}, {"BF16", "BF16", "F32", "F32"}, NULL},
    /* names with the same ends, but nothing packed beside them */
    {{"stat.absmax", "pool.g_idx", "x.qzeros", "a.SCB"}, {"F32", "I32", "I32", "F32"}, NULL},
    {{"a.weight", "a.absmax", "a.qscale_weight", "a.wscales"}, {"BF16", "F32", "F32", "F32"}, NULL},
    {{"a.qweight", "scaled_fp8", "a.comfy_quant", "a.dequant_scale"}, {"BF16", "F32", "U8", "F32"}, NULL},
    {{"a.weight", "a.centroids.weight", "a.indices", "a.s"}, {"BF16", "BF16", "I64", "BF16"}, NULL},
    {{"a.B", "a.s", "a.dense_weights", "a.row_offsets"}, {"BF16", "BF16", "F32", "I32"}, NULL},
    {{"b.B", "b.s", "b.weight", "weight_quantizer._amax"}, {"I32", "BF16", "BF16", "F32"}, NULL},
    {{"pool_blocks", "a.blocks"}, {"U8", "U8"}, NULL},
    {{"a.weight_g", "a.weight_v", "zero", "a.zeros"}, {"F32", "F32", "F32", "F32"}, NULL},
};

START_TEST(tensors_tell) {
    const char *path = fixture_path("tensors.safetensors");
    write_tensors(path, kTensors[_i].names, kTensors[_i].dtypes, NULL);
    check_kind(path, kTensors[_i].found);
}
END_TEST

START_TEST(they_may_stand_in_different_files) {
    static const char *const weight[4] = {"a.weight"}, *const f8[4] = {"F8_E4M3"}, *const scale[4] = {"a.weight_scale"},
                             *const f32[4] = {"F32"};
    const char *folder = fixture_path("apart");
    fixture_make_folder(folder);
    write_tensors(fixture_path("apart/1.safetensors"), weight, f8, NULL);
    fixture_tensor tensor = {scale[0], f32[0], {32, 64}, 2, 0};
    fixture_write_safetensors(fixture_path("apart/2.safetensors"), NULL, &tensor, 1, 8, 3);
    check_kind(folder, "a.weight_scale");
}
END_TEST

START_TEST(blocks_tell_without_their_scales) { /* those are in another shard */
    const char *path = fixture_path("blocks.safetensors");
    const fixture_tensor tensors[] = {{"other.weight", "BF16", {64, 64}, 2, 0},
                                      {_i ? "a.blocks" : "a.down_proj_blocks", "U8", {2, 64, 4, 16}, 4, 0}};
    fixture_write_safetensors(path, NULL, tensors, 2, 8, 3);
    check_kind(path, "blocks' (U8)");
}
END_TEST

START_TEST(metadata_tells) {
    static const char *const none[4] = {NULL};
    const char *path = fixture_path("metadata.safetensors");
    write_tensors(path, none, none, _i ? "{\"format\":\"pt\"}" : "{\"quantization_config\":\"{}\"}");
    check_kind(path, _i ? NULL : "__metadata__");
}
END_TEST

/* ---- by config.json and other files ---- */

static const char *make_folder(const char *config) {
    static const char *const none[4] = {NULL};
    const char *folder = fixture_path("folder");
    fixture_make_folder(folder);
    write_tensors(fixture_path("folder/model.safetensors"), none, none, NULL);
    if (config)
        fixture_write(fixture_path("folder/config.json"), config, strlen(config));
    return folder;
}

static const struct {
    const char *config, *found;
} kConfigs[] = {
    {"{\"quantization_config\": {\"quant_method\": \"fp8\"}}", "(fp8)"},
    {"{\"quantization_config\": {}}", "quantization_config"},
    {"{\"model_type\": \"llama\", \"quip_params\": {\"codebook\": \"E8P12\"}}", "quip_params"},
    {"{\"quantization_config\": {\"quant_method\": \"fp8\"}, \"quantization_config\": 1}", "quantization_config"},
    {"{\"model_type\": \"a\", \"text_config\": {\"quantization_config\": {\"quant_method\": \"awq\"}}}", "(awq)"},
    {"{\"a\": [0, {\"b\": {\"compression_config\": {\"format\": \"x\"}}}]}", "compression_config"},
    {"{\"quantization\": {\"group_size\": 64, \"bits\": 4}}", "quantization"},
    {"{\"quantization_config\": null, \"text_config\": {\"quantization_config\": null}}", NULL},
    {"{\"model_type\": \"a\", \"quantization_config\": false}", NULL},
    {"{\"quantization\": null, \"quantizer_dropout\": 0.1}", NULL},
    {"{\"quantization\": {\"codebook\": 3}, \"quantization_config_of\": {}}", NULL},
};

START_TEST(configs_tell) { check_kind(make_folder(kConfigs[_i].config), kConfigs[_i].found); }
END_TEST

static const struct {
    const char *name, *found;
} kFiles[] = {{"hf_quant_config.json", "hf_quant_config.json"},
              {"quantize_config.json", "quantize_config.json"},
              {"quant_config.json", "quant_config.json"},
              {"compression_config.json", "compression_config.json"},
              {"adapter_config.json", "adapter"},
              {"preprocessor_config.json", NULL}};

START_TEST(files_tell) {
    const char *folder = make_folder(_i % 2 ? "{\"model_type\": \"a\"}" : NULL);
    fixture_write(fixture_path("folder/%s", kFiles[_i].name), "{}", 2);
    check_kind(folder, kFiles[_i].found);
}
END_TEST

static const struct {
    const char *text;
    int is_quantized;
} kAlgorithms[] = {
    {"{\"producer\": {}, \"quantization\": {\"quant_algo\": null, \"kv_cache_quant_algo\": null}}", 0},
    {"{\"quantization\": {\"quant_algo\": null}}", 0},
    {"{\"quantization\": {\"quant_algo\": \"NVFP4\", \"kv_cache_quant_algo\": null}}", 1},
    {"{\"quantization\": {\"quant_algo\": null, \"kv_cache_quant_algo\": \"FP8\"}}", 1},
    {"{\"quantization\": {", 1},
};

START_TEST(algorithms_that_are_null_do_not) {
    const char *folder = make_folder("{\"model_type\": \"a\"}");
    fixture_write(fixture_path("folder/hf_quant_config.json"), kAlgorithms[_i].text, strlen(kAlgorithms[_i].text));
    check_kind(folder, kAlgorithms[_i].is_quantized ? "hf_quant_config.json" : NULL);
}
END_TEST

#define QUANTIZED "{\"quantization_config\": {\"quant_method\": \"fp8\"}}"
#define OURS "{\"quantization_config\": {\"quant_method\": \"transfuse\"}}"

static const struct {
    const char *file, *beside, *text, *found;
} kBeside[] = {
    {"model.safetensors", "config.json", QUANTIZED, "(fp8) in the config.json beside it"},
    {"model-00001-of-00002.safetensors", "hf_quant_config.json", "{}", "beside it is a file hf_quant_config.json"},
    {"diffusion_pytorch_model.fp16.safetensors", "config.json", QUANTIZED, "(fp8)"},
    {"adapter_model.safetensors", "adapter_config.json", "{}", "is an adapter (beside it is an adapter_config.json)"},
    {"other.safetensors", "config.json", QUANTIZED, NULL},
    {"modeling.safetensors", "config.json", QUANTIZED, NULL},
    {"model.safetensors", "adapter_config.json", "{}", NULL},
    {"adapter_model.safetensors", "config.json", QUANTIZED, NULL},
    {"model.safetensors", "config.json", OURS, NULL},
};

START_TEST(what_lies_beside_a_file_tells) {
    static const char *const none[4] = {NULL};
    const char *path = fixture_path("beside/%s", kBeside[_i].file);
    fixture_make_folder(fixture_path("beside"));
    write_tensors(path, none, none, NULL);
    fixture_write(fixture_path("beside/%s", kBeside[_i].beside), kBeside[_i].text, strlen(kBeside[_i].text));
    check_kind(path, kBeside[_i].found);
}
END_TEST

/* ---- adapters by their tensors ---- */

static const struct {
    const char *names[6];
    int is_adapter;
} kAdapters[] = {
    {{"unet.a.to_q.lora_A.weight", "unet.a.to_q.lora_B.weight"}, 1},
    {{"base_model.model.a.lora_A.weight", "base_model.model.a.lora_B.weight", "base_model.model.lm_head.weight"}, 1},
    {{"lora_unet_a_b.lora_down.weight", "lora_unet_a_b.lora_up.weight", "lora_unet_a_b.alpha"}, 1},
    {{"lora_te1_a.dora_scale", "lora_te1_a.lora_down.weight", "lora_te1_a.lora_up.weight", "lora_te1_a.alpha"}, 1},
    {{"lycoris_a.lokr_w1", "lycoris_a.lokr_w2", "lycoris_a.alpha", "lycoris_b.diff"}, 1},
    {{"diffusion_model.a.lokr_w1", "diffusion_model.a.lokr_w2_a", "diffusion_model.a.lokr_w2_b"}, 1},
    {{"a.hada_w1_a", "a.hada_w1_b", "a.hada_w2_a", "a.hada_w2_b", "a.alpha"}, 1},
    {{"unet.a.processor.to_q_lora.down.weight", "unet.a.processor.to_q_lora.up.weight"}, 1},
    {{"unet.a.attn1.to_q.lora.down.weight", "unet.a.attn1.to_q.lora.up.weight"}, 1},
    {{"double_blocks.0.processor.qkv_lora1.down.weight", "double_blocks.0.processor.qkv_lora1.up.weight"}, 1},
    {{"base_model.vera_A", "base_model.vera_B", "base_model.model.a.vera_lambda_d"}, 1},
    {{"base_model.model.a.oft_r.weight", "base_model.model.b.oft_blocks"}, 1},
    {{"base_model.model.a.boft_R", "base_model.model.a.boft_s"}, 1},
    /* models that have updates besides the weights */
    {{"a.base_layer.weight", "a.lora_A.speech.weight", "a.lora_B.speech.weight", "a.lora_A.vision.weight",
      "a.lora_B.vision.weight"},
     0},
    {{"a.weight", "a.lora_A.weight", "a.lora_B.weight"}, 0},
    {{"a.weight", "b.weight", "c.weight", "d.lora_A.weight", "d.lora_B.weight"}, 0},
    {{"lora.weight", "florad.lora.weight", "a.explora_b.weight"}, 0},
    {{"blocks.0.att.w_lora.lora.0.weight", "blocks.0.att.w_lora.lora.2.weight", "blocks.0.att.r_proj.weight"}, 0},
    {{"a.to_q.weight", "a.to_q.lora.down.weight", "a.to_q.lora.up.weight"}, 0},
};

static void write_adapter(const char *path, int number) {
    fixture_tensor tensors[6];
    size_t count = 0;
    for (; count < 6 && kAdapters[number].names[count]; count++)
        tensors[count] = (fixture_tensor){kAdapters[number].names[count], "BF16", {64, 256}, 2, 0};
    fixture_write_safetensors(path, NULL, tensors, count, 8, 3);
}

START_TEST(adapters_are_known_by_their_tensors) {
    const char *found = kAdapters[_i].is_adapter ? "is an adapter (it has tensors such as '" : NULL;
    const char *folder = fixture_path("lora"), *path = fixture_path("lora/pytorch_lora_weights.safetensors");
    fixture_make_folder(folder);
    write_adapter(path, _i);
    check_kind(path, found);
    check_kind(folder, found);
}
END_TEST

START_TEST(an_adapter_beside_a_model_stays) {
    const char *folder = make_folder("{\"model_type\": \"a\"}"), *out = fixture_path("kept"),
               *path = fixture_path("folder/pytorch_lora_weights.safetensors");
    write_adapter(path, 0);
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(folder, out, NULL, &report, &err), TRF_OK, &err);
    fixture_check_same(path, fixture_path("kept/pytorch_lora_weights.safetensors"));
    ck_assert_msg(strstr(report.warning, "pytorch_lora_weights.safetensors: is an adapter") != NULL, "%s",
                  report.warning);
    ck_assert_uint_eq(report.compressed_tensors, 1);
    ck_assert_uint_eq(report.left[TRF_LEFT_ADAPTER].tensors, 2);
    ck_assert_uint_eq(report.left[TRF_LEFT_ADAPTER].bytes, 2 * 64 * 256 * 2);
    fixture_check_status(trf_verify_checkpoint(out, folder, NULL, NULL, &err), TRF_OK, &err);
}
END_TEST

START_TEST(an_adapters_config_beside_a_model_stays) {
    const char *folder = make_folder("{\"model_type\": \"a\"}");
    const char *weights = fixture_path("folder/%s.safetensors", _i ? "adapter_model" : "model");
    fixture_write(fixture_path("folder/adapter_config.json"), "{}", 2);
    ck_assert_int_eq(rename(fixture_path("folder/model.safetensors"), weights), 0);
    check_kind(folder, _i ? "is an adapter (it has an adapter_config.json)" : NULL);
}
END_TEST

/* ---- blobs under names that do not say so ---- */

/* Writes a file with one tensor that has a blob's bytes, as in a state dict. */
static void write_bare_blob(const char *path) {
    static const char *const names[4] = {"a.weight"}, *const types[4] = {"BF16"};
    size_t bytes;
    write_tensors(fixture_path("whole.safetensors"), names, types, NULL);
    fixture_check_status(
        trf_compress_checkpoint(fixture_path("whole.safetensors"), fixture_path("c.safetensors"), NULL, NULL, &err),
        TRF_OK, &err);
    fixture_check_status(
        trf_extract_layer(fixture_path("c.safetensors"), "other.weight", fixture_path("layer.trf"), 0, &err), TRF_OK,
        &err);
    void *blob = fixture_read(fixture_path("layer.trf"), &bytes);
    char header[128];
    snprintf(header, sizeof header, "{\"a.weight\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", bytes,
             bytes);
    fixture_write_header(path, header, bytes);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    fseek(file, (long)(8 + strlen(header)), SEEK_SET);
    ck_assert_uint_eq(fwrite(blob, 1, bytes, file), bytes);
    fclose(file);
    free(blob);
}

START_TEST(blobs_under_other_names_are_told) {
    const char *path = fixture_path("state.safetensors"), *out = fixture_path("no.safetensors"),
               *back = fixture_path("back.safetensors");
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.store_only = _i;
    write_bare_blob(path);
    fixture_check_status(trf_compress_checkpoint(path, out, &options, NULL, &err), TRF_ERR_FORMAT, &err);
    ck_assert_msg(strstr(err.message, path) && strstr(err.message, "'a.weight'") &&
                      strstr(err.message, "save_pretrained"),
                  "%s", err.message);
    ck_assert(!fixture_exists(out));
    fixture_check_status(trf_verify_checkpoint(path, NULL, NULL, NULL, &err), TRF_ERR_FORMAT, &err);
    ck_assert_msg(strstr(err.message, "'a.weight'") && strstr(err.message, "save_pretrained"), "%s", err.message);
    trf_checkpoint_report report;
    fixture_check_status(trf_decompress_checkpoint(path, back, NULL, &report, &err), TRF_OK, &err);
    ck_assert_msg(strstr(report.warning, "save_pretrained instead; it stays as it is") != NULL, "%s", report.warning);
    fixture_check_same(path, back);
    trf_checkpoint *checkpoint;
    trf_tensor_info info;
    fixture_check_status(trf_checkpoint_open(path, &checkpoint, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_tensor(checkpoint, 0, &info, &err), TRF_OK, &err);
    ck_assert(info.is_bare_blob && !info.compressed);
    trf_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(what_is_stored_says_so) {
    static const char text[] =
        "{\"model_type\": \"a\", \"quantization_config\": {\"quant_method\": \"fp8\"}, \"b\": 1}";
    const char *folder = make_folder(text), *out = fixture_path("stored");
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.store_only = 1;
    fixture_check_status(trf_compress_checkpoint(folder, out, &options, NULL, &err), TRF_OK, &err);
    size_t bytes;
    char *config = fixture_read(fixture_path("stored/config.json"), &bytes);
    json_t *root = json_loads(config, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(root);
    const json_t *ours = json_object_get(root, "quantization_config");
    ck_assert_str_eq(json_string_value(json_object_get(ours, "quant_method")), "transfuse");
    ck_assert(json_is_true(json_object_get(ours, "stored")));
    ck_assert_str_eq(json_string_value(json_object_get(ours, "source_config")), text);
    const char *sentence = json_string_value(json_object_get(root, "transformers_weights"));
    ck_assert_msg(sentence && strstr(sentence, "transfuse decompress"), "%s", config);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "b")), 1);
    json_decref(root);
    free(config);
}
END_TEST

START_TEST(what_is_stored_is_lossless) {
    static const char *const names[4] = {"a.weight"}, *const f32[4] = {"F32"};
    const char *path = fixture_path("floats.safetensors"), *out = fixture_path("no.safetensors");
    write_tensors(path, names, f32, NULL);
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.store_only = 1;
    options.encode.codec = _i ? TRF_CODEC_BF16 : TRF_CODEC_INT;
    fixture_check_status(trf_compress_checkpoint(path, out, &options, NULL, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_msg(strstr(err.message, "tensor '") && strstr(err.message, "lossless"), "%s", err.message);
    ck_assert(!fixture_exists(out));
}
END_TEST

/* ---- the dtype that is found ---- */

typedef struct dtype_file {
    const char *name;
    const char *names[4], *dtypes[4];
} dtype_file;

static const struct {
    const char *config;
    dtype_file files[2];
    const char *index; /* its metadata; NULL: no index */
    const char *found;
} kDtypes[] = {
    {"", {{"model.safetensors", {"b.weight", "a.norm"}, {"BF16", "F32"}}}, NULL, "float32"},
    {"", {{"model.safetensors", {"b.weight", "a.norm"}, {"BF16", "F16"}}}, NULL, "float16"},
    {"", {{"model.safetensors", {"b.weight", "a.codes"}, {"BF16", "F8_E4M3"}}}, NULL, "bfloat16"},
    {"", {{"model.safetensors", {"b.weight", "a.codes"}, {"F64", "I64"}}}, NULL, "float64"},
    {"", {{"2.safetensors", {"b.weight"}, {"F16"}}, {"1.safetensors", {"a.weight"}, {"BF16"}}}, NULL, "bfloat16"},
    {"", {{"0.safetensors", {"b.weight"}, {"F16"}}, {"model.safetensors", {"a.weight"}, {"BF16"}}}, NULL, "bfloat16"},
    {"", {{"0.safetensors", {"b.weight"}, {"F16"}}, {"s1.safetensors", {"a.weight"}, {"BF16"}}}, "{}", "bfloat16"},
    {"",
     {{"s2.safetensors", {"b.weight"}, {"F16"}}, {"s1.safetensors", {"a.weight"}, {"BF16"}}},
     "{\"dtype\": \"float32\"}",
     "float32"},
    {"", {{"s1.safetensors", {"a.weight"}, {"BF16"}}}, "{\"dtype\": \"odd\"}", NULL},
    {"\"torch_dtype\": null, ", {{"model.safetensors", {"a.weight"}, {"BF16"}}}, NULL, "bfloat16"},
    {"\"text_config\": {\"dtype\": \"float16\"}, ", {{"model.safetensors", {"a.weight"}, {"BF16"}}}, NULL, "bfloat16"},
    {"\"torch_dtype\": \"float32\", ", {{"model.safetensors", {"a.weight"}, {"BF16"}}}, NULL, NULL},
    {"\"dtype\": \"bfloat16\", ", {{"model.safetensors", {"a.weight"}, {"F16"}}}, NULL, "bfloat16"},
    {"\"_class_name\": \"A\", ", {{"model.safetensors", {"a.weight"}, {"BF16"}}}, NULL, NULL},
    /* it depends on the variant */
    {"",
     {{"model.safetensors", {"a.weight"}, {"BF16"}}, {"model.fp16.safetensors", {"a.weight"}, {"F16"}}},
     NULL,
     NULL},
    {"", {{"model.fp16.safetensors", {"a.weight"}, {"F16"}}}, NULL, "float16"},
    {"\"transformers_weights\": \"0.safetensors\", ",
     {{"0.safetensors", {"a.weight"}, {"F16"}}, {"model.safetensors", {"a.weight"}, {"BF16"}}},
     NULL,
     "float16"},
};

/* Writes the model of a case: config.json, files, and an index of those whose name begins with "s". */
static void write_model(int number, const char *folder) {
    char text[512];
    fixture_make_folder(folder);
    snprintf(text, sizeof text, "{%s\"model_type\": \"a\"}", kDtypes[number].config);
    fixture_write(fixture_path("%s/config.json", strrchr(folder, '/') + 1), text, strlen(text));
    size_t used = (size_t)snprintf(text, sizeof text, "{\"metadata\": %s, \"weight_map\": {", kDtypes[number].index);
    for (int f = 0; f < 2 && kDtypes[number].files[f].name; f++) {
        const dtype_file *file = &kDtypes[number].files[f];
        fixture_tensor tensors[4];
        size_t count = 0;
        for (; count < 4 && file->names[count]; count++) {
            tensors[count] = (fixture_tensor){file->names[count], file->dtypes[count], {160, 256}, 2, 0};
            if (file->name[0] == 's')
                used += (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\": \"%s\"",
                                         text[used - 1] == '{' ? "" : ", ", file->names[count], file->name);
        }
        fixture_write_safetensors(fixture_path("%s/%s", strrchr(folder, '/') + 1, file->name), NULL, tensors, count, 8,
                                  3);
    }
    snprintf(text + used, sizeof text - used, "}}");
    if (kDtypes[number].index)
        fixture_write(fixture_path("%s/model.safetensors.index.json", strrchr(folder, '/') + 1), text, strlen(text));
}

START_TEST(the_dtype_is_found) {
    const char *folder = fixture_path("model"), *out = fixture_path("model-out"), *back = fixture_path("model-back");
    write_model(_i, folder);
    fixture_check_status(trf_compress_checkpoint(folder, out, NULL, NULL, &err), TRF_OK, &err);
    size_t bytes;
    char *config = fixture_read(fixture_path("model-out/config.json"), &bytes);
    json_t *root = json_loads(config, 0, NULL);
    ck_assert_ptr_nonnull(root);
    const char *found = json_string_value(json_object_get(root, "dtype"));
    if (json_object_get(root, "quantization_config"))
        ck_assert_msg(kDtypes[_i].found ? found && strcmp(found, kDtypes[_i].found) == 0 : !found, "%s", config);
    else
        ck_assert_int_eq(_i, 3); /* there is nothing to compress in F64 */
    json_decref(root);
    free(config);
    trf_checkpoint_report report;
    fixture_check_status(trf_decompress_checkpoint(out, back, NULL, &report, &err), TRF_OK, &err);
    ck_assert_str_eq(report.warning, "");
    fixture_check_same(folder, back);
}
END_TEST

/* ---- types that do not fit ---- */

static const struct {
    const char *dtype, *tensor_dtype, *advice; /* NULL: none */
} kFits[] = {
    {"float16", "BF16", "pass dtype=torch.bfloat16"},
    {"bfloat16", "F16", "pass dtype=torch.float16"},
    {"bfloat16", "BF16", NULL},
    {"float16", "F16", NULL},
    {"float32", "F16", NULL},
    {"float32", "BF16", NULL},
    {"float16", "F8_E4M3", NULL},
    {"bfloat16", "I8", NULL},
    {"auto", "BF16", NULL}, /* no dtype that could fit or not */
};

START_TEST(a_dtype_that_does_not_fit_is_told) {
    char config[128];
    const char *folder = fixture_path("fit");
    fixture_make_folder(folder);
    snprintf(config, sizeof config, "{\"model_type\": \"a\", \"torch_dtype\": \"%s\"}", kFits[_i].dtype);
    fixture_write(fixture_path("fit/config.json"), config, strlen(config));
    const fixture_tensor tensor = {"a.weight", kFits[_i].tensor_dtype, {160, 256}, 2, 0};
    fixture_write_safetensors(fixture_path("fit/model.safetensors"), NULL, &tensor, 1, 8, 3);
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(folder, fixture_path("fit-out"), NULL, &report, &err), TRF_OK, &err);
    if (kFits[_i].advice)
        ck_assert_msg(strstr(report.warning, kFits[_i].advice) && strstr(report.warning, "(tensors: 1)"), "%s",
                      report.warning);
    else
        ck_assert_str_eq(report.warning, "");
}
END_TEST

START_TEST(the_variant_that_does_not_fit_is_named) {
    static const char *const files[][3] = {
        {"model.safetensors", "model.fp16.safetensors", ", of the variant fp16); pass dtype=torch.float16"},
        {"model.safetensors", "model-00001-of-00001.fp16.safetensors", ", of the variant fp16); pass"},
        {"model.bf16.safetensors", "model.safetensors", ", of the files without a variant); pass dtype=torch.float16"},
        {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "1); pass dtype=torch.float32"}};
    static const char config[] = "{\"model_type\": \"a\", \"dtype\": \"bfloat16\"}";
    const fixture_tensor fits = {"a.weight", "BF16", {160, 256}, 2, 0}, misfit = {"b.weight", "F16", {160, 256}, 2, 0};
    fixture_make_folder(fixture_path("fit"));
    fixture_write(fixture_path("fit/config.json"), config, strlen(config));
    fixture_write_safetensors(fixture_path("fit/%s", files[_i][0]), NULL, &fits, 1, 8, 3);
    fixture_write_safetensors(fixture_path("fit/%s", files[_i][1]), NULL, &misfit, 1, 8, 3);
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(fixture_path("fit"), fixture_path("fit-out"), NULL, &report, &err),
                         TRF_OK, &err);
    const char *told = strstr(report.warning, "(tensors: 1");
    ck_assert_msg(told && strstr(told, files[_i][2]) && !strstr(told + 1, "(tensors: "), "%s", report.warning);
}
END_TEST

/* ---- what is left, and typos ---- */

START_TEST(the_report_says_what_is_left) {
    static const fixture_tensor tensors[] = {
        {"a.weight", "BF16", {64, 64}, 2, 0}, {"embed_tokens.weight", "BF16", {64, 64}, 2, 0},
        {"norm.weight", "BF16", {64}, 1, 0},  {"small.weight", "BF16", {8, 64}, 2, 0},
        {"b.weight", "F32", {64, 64}, 2, 0},  {"c.weight", "I64", {64, 64}, 2, 0},
        {"x.weight", "BF16", {64, 64}, 2, 0}, {"tiny.weight", "I8", {16, 16}, 2, 0},
    };
    static const trf_left_reason reasons[] = {TRF_LEFT_EMBEDDING, TRF_LEFT_NO_MATRIX, TRF_LEFT_SMALL,      TRF_LEFT_F32,
                                              TRF_LEFT_DTYPE,     TRF_LEFT_EXCLUDED,  TRF_LEFT_NOT_SMALLER};
    static const uint64_t bytes[] = {8192, 128, 1024, 16384, 32768, 8192, 256};
    const char *const exclude[] = {"x.*", NULL};
    const char *path = fixture_path("left.safetensors");
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.exclude = exclude;
    trf_checkpoint_report report;
    fixture_write_safetensors(path, NULL, tensors, 8, 8, 3);
    fixture_check_status(trf_compress_checkpoint(path, fixture_path("left-out.safetensors"), &options, &report, &err),
                         TRF_OK, &err);
    ck_assert_uint_eq(report.compressed_tensors, 1);
    for (int i = 0; i < COUNT(reasons); i++) {
        ck_assert_msg(report.left[reasons[i]].tensors == 1 && report.left[reasons[i]].bytes == bytes[i],
                      "%d: %llu, %llu", reasons[i], (unsigned long long)report.left[reasons[i]].tensors,
                      (unsigned long long)report.left[reasons[i]].bytes);
    }
}
END_TEST

START_TEST(an_exclude_that_matches_nothing_is_an_error) {
    static const fixture_tensor tensor = {"a.weight", "BF16", {64, 64}, 2, 0};
    const char *const exclude[] = {"a.*", _i ? "b.*" : "b.weight", NULL};
    const char *path = fixture_path("typo.safetensors"), *out = fixture_path("typo-out.safetensors");
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.exclude = exclude;
    fixture_write_safetensors(path, NULL, &tensor, 1, 8, 3);
    fixture_check_status(trf_compress_checkpoint(path, out, &options, NULL, &err), TRF_ERR_NOT_FOUND, &err);
    ck_assert_msg(strstr(err.message, exclude[1]) && strstr(err.message, "exclude"), "%s", err.message);
    ck_assert(!fixture_exists(out));
}
END_TEST

int main(void) {
    Suite *suite = suite_create("source_kind");
    TCase *tests = tcase_create("source_kind");
    tcase_add_checked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_loop_test(tests, tensors_tell, 0, COUNT(kTensors));
    tcase_add_test(tests, they_may_stand_in_different_files);
    tcase_add_loop_test(tests, blocks_tell_without_their_scales, 0, 2);
    tcase_add_loop_test(tests, metadata_tells, 0, 2);
    tcase_add_loop_test(tests, configs_tell, 0, COUNT(kConfigs));
    tcase_add_loop_test(tests, files_tell, 0, COUNT(kFiles));
    tcase_add_loop_test(tests, algorithms_that_are_null_do_not, 0, COUNT(kAlgorithms));
    tcase_add_loop_test(tests, what_lies_beside_a_file_tells, 0, COUNT(kBeside));
    tcase_add_loop_test(tests, adapters_are_known_by_their_tensors, 0, COUNT(kAdapters));
    tcase_add_test(tests, an_adapter_beside_a_model_stays);
    tcase_add_loop_test(tests, an_adapters_config_beside_a_model_stays, 0, 2);
    tcase_add_loop_test(tests, blobs_under_other_names_are_told, 0, 2);
    tcase_add_test(tests, what_is_stored_says_so);
    tcase_add_loop_test(tests, what_is_stored_is_lossless, 0, 2);
    tcase_add_loop_test(tests, the_dtype_is_found, 0, COUNT(kDtypes));
    tcase_add_loop_test(tests, a_dtype_that_does_not_fit_is_told, 0, COUNT(kFits));
    tcase_add_loop_test(tests, the_variant_that_does_not_fit_is_named, 0, 4);
    tcase_add_test(tests, the_report_says_what_is_left);
    tcase_add_loop_test(tests, an_exclude_that_matches_nothing_is_an_error, 0, 2);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
