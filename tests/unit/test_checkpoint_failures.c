/* SPDX-License-Identifier: Apache-2.0 */
/* Failures with checkpoints: each has its status, and none leaves anything behind. */
#define _GNU_SOURCE /* memmem */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_blob.h"
#include "trf_checkpoint_file.h"
#include "trf_file.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const fixture_tensor kTensors[] = {
    {"a.weight", "BF16", {300, 520}, 2, 0}, {"b.weight", "BF16", {4, 64, 256}, 3, 0}, {"c.bias", "F32", {1000}, 1, 0}};
enum {
    NUM_TENSORS = sizeof kTensors / sizeof kTensors[0]
};

static trf_error err;

/* A source file, and its compressed form, each in a folder of its own. */
static const char *make_source(const char *name) {
    fixture_make_folder(fixture_path("%s", name));
    const char *path = fixture_path("%s/in.safetensors", name);
    fixture_write_safetensors(path, NULL, kTensors, NUM_TENSORS, 8, 1);
    return path;
}

static const char *make_packed(const char *name) {
    const char *source = make_source(name), *compressed_path = fixture_path("%s/compressed.safetensors", name);
    fixture_check_status(trf_compress_checkpoint(source, compressed_path, NULL, NULL, &err), TRF_OK, &err);
    return compressed_path;
}

/* Compresses, which must fail, and leave the folder as it was. */
static void check_compress_fails(const char *in, const char *folder, const char *out_name,
                                 const trf_checkpoint_options *options, trf_status expected) {
    int entries = fixture_count_entries(fixture_path("%s", folder));
    trf_status status = trf_compress_checkpoint(in, fixture_path("%s/%s", folder, out_name), options, NULL, &err);
    fixture_check_status(status, expected, &err);
    ck_assert_int_eq(fixture_count_entries(fixture_path("%s", folder)), entries);
}

START_TEST(inputs_that_are_none) {
    fixture_make_folder(fixture_path("none"));
    fixture_make_folder(fixture_path("none/empty"));
    fixture_write(fixture_path("none/text"), "some text", 9);
    check_compress_fails(fixture_path("none/missing"), "none", "out", NULL, TRF_ERR_NOT_FOUND);
    check_compress_fails(fixture_path("none/empty"), "none", "out", NULL, TRF_ERR_NOT_FOUND);
    check_compress_fails(fixture_path("none/text"), "none", "out", NULL, TRF_ERR_FORMAT);
    check_compress_fails("/dev/null", "none", "out", NULL, TRF_ERR_IO);
    ck_assert_int_eq(trf_compress_checkpoint(fixture_path("none/missing"), fixture_path("none/out"), NULL, NULL, NULL),
                     TRF_ERR_NOT_FOUND);
}
END_TEST

START_TEST(outputs_that_exist) {
    const char *in = make_source("exists");
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    fixture_write(fixture_path("exists/file"), "old", 3);
    fixture_make_folder(fixture_path("exists/directory"));
    check_compress_fails(in, "exists", "file", &options, TRF_ERR_EXISTS);
    check_compress_fails(in, "exists", "directory", &options, TRF_ERR_EXISTS);
    options.overwrite = 1;
    check_compress_fails(in, "exists", "directory", &options, TRF_ERR_EXISTS);
    fixture_check_status(trf_compress_checkpoint(in, fixture_path("exists/file"), &options, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_verify_checkpoint(fixture_path("exists/file"), in, NULL, NULL, &err), TRF_OK, &err);
    ck_assert_int_eq(fixture_count_entries(fixture_path("exists")), 3);
}
END_TEST

START_TEST(directories_that_exist) {
    make_source("replace-in");
    const char *in = fixture_path("replace-in");
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    fixture_make_folder(fixture_path("replace"));
    fixture_write(fixture_path("replace/file"), "old", 3);
    fixture_make_folder(fixture_path("replace/foreign"));
    fixture_write(fixture_path("replace/foreign/diary.txt"), "dear", 4);
    fixture_make_folder(fixture_path("replace/empty"));
    fixture_make_folder(fixture_path("replace/former"));
    fixture_write(fixture_path("replace/former/model.safetensors"), "old", 3);
    fixture_write(fixture_path("replace/former/more"), "old", 3);
    check_compress_fails(in, "replace", "former", &options, TRF_ERR_EXISTS);
    options.overwrite = 1;
    check_compress_fails(in, "replace", "file", &options, TRF_ERR_EXISTS);
    check_compress_fails(in, "replace", "foreign", &options, TRF_ERR_EXISTS);
    ck_assert(fixture_exists(fixture_path("replace/foreign/diary.txt")));
    fixture_check_status(trf_compress_checkpoint(in, fixture_path("replace/empty/"), &options, NULL, &err), TRF_OK,
                         &err);
    check_compress_fails(in, "replace", "former", &options, TRF_ERR_EXISTS);
    ck_assert(fixture_exists(fixture_path("replace/former/more")));
    ck_assert_int_eq(unlink(fixture_path("replace/former/more")), 0);
    ck_assert_int_eq(
        rename(fixture_path("replace/former/model.safetensors"), fixture_path("replace/former/in.safetensors")),
        0); /* which will be written */
    fixture_check_status(trf_compress_checkpoint(in, fixture_path("replace/former"), &options, NULL, &err), TRF_OK,
                         &err);
    fixture_check_same(fixture_path("replace/empty"), fixture_path("replace/former"));
    ck_assert_int_eq(fixture_count_entries(fixture_path("replace")), 4);
}
END_TEST

START_TEST(outputs_that_cannot_be) {
    const char *in = make_source("place");
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.overwrite = 1;
    check_compress_fails(in, "place", "no/such/folder", &options, TRF_ERR_IO);
    check_compress_fails(in, "place", "in.safetensors/x", &options, TRF_ERR_ARGUMENT);
    check_compress_fails(in, "place", "in.safetensors", &options, TRF_ERR_ARGUMENT);
    check_compress_fails(in, "place", "./../place/in.safetensors", &options, TRF_ERR_ARGUMENT);
    check_compress_fails(fixture_path("place"), "place", "out", &options, TRF_ERR_ARGUMENT);
    check_compress_fails(fixture_path("place"), "place", ".", &options, TRF_ERR_ARGUMENT);
    check_compress_fails(fixture_path("place"), "place", "..", &options, TRF_ERR_ARGUMENT);
    check_compress_fails(fixture_path("place"), "place", "../out.safetensors", &options, TRF_ERR_ARGUMENT);
    ck_assert_int_eq(symlink("in.safetensors", fixture_path("place/link")), 0);
    check_compress_fails(in, "place", "link", &options, TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_compress_checkpoint(in, "", NULL, NULL, &err), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(mkfifo(fixture_path("place/fifo"), 0666), 0);
    check_compress_fails(in, "place", "fifo", &options, TRF_ERR_EXISTS);
}
END_TEST

START_TEST(full_disk_leaves_nothing) {
    const char *in = make_source("full"), *folder = fixture_path("full");
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t bytes = 0; bytes < 200000; bytes += 65536) {
        limit.rlim_cur = bytes;
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        trf_status status = trf_compress_checkpoint(in, fixture_path("full/out"), NULL, NULL, &err);
        int entries = fixture_count_entries(folder);
        limit.rlim_cur = limit.rlim_max; /* Check itself must be able to write */
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        fixture_check_status(status, TRF_ERR_IO, &err);
        ck_assert_int_eq(entries, 1);
    }
}
END_TEST

typedef struct cancel_state {
    uint64_t calls, stop_at, last;
} cancel_state;

static int cancel_at(void *context, const char *tensor, uint64_t done, uint64_t total) {
    cancel_state *state = context;
    ck_assert_ptr_nonnull(tensor);
    ck_assert_uint_le(done, total);
    state->last = done;
    return ++state->calls == state->stop_at;
}

START_TEST(cancelling_leaves_nothing) {
    make_source("cancel");
    fixture_write(fixture_path("cancel/config.json"), "{}", 2);
    fixture_make_folder(fixture_path("cancelled"));
    cancel_state state = {0};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.progress = cancel_at;
    options.progress_context = &state;
    options.encode.threads = 1;
    const char *in = fixture_path("cancel"), *whole = fixture_path("cancelled/whole"),
               *back = fixture_path("cancelled/back");
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(in, whole, &options, &report, &err), TRF_OK, &err);
    ck_assert_uint_ge(state.calls, 4);
    ck_assert_uint_eq(state.last, report.source_bytes);
    uint64_t calls = state.calls;
    for (uint64_t stop = 1; stop <= calls; stop++) {
        state = (cancel_state){.stop_at = stop};
        check_compress_fails(in, "cancelled", "out", &options, TRF_ERR_CANCELLED);
    }
    state = (cancel_state){0};
    fixture_check_status(trf_decompress_checkpoint(whole, back, &options, NULL, &err), TRF_OK, &err);
    ck_assert_uint_eq(state.last, report.source_bytes);
    calls = state.calls;
    for (uint64_t stop = 1; stop <= calls; stop++) {
        state = (cancel_state){.stop_at = stop};
        fixture_check_status(trf_decompress_checkpoint(whole, fixture_path("cancelled/out"), &options, NULL, &err),
                             TRF_ERR_CANCELLED, &err);
        ck_assert_int_eq(fixture_count_entries(fixture_path("cancelled")), 2);
    }
    state = (cancel_state){.stop_at = 2};
    fixture_check_status(trf_verify_checkpoint(whole, in, &options, NULL, &err), TRF_ERR_CANCELLED, &err);
}
END_TEST

static int write_to(void *context, const char *tensor, uint64_t done, uint64_t total) {
    (void)tensor, (void)done, (void)total;
    FILE *file = fopen(context, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, -1, SEEK_END), 0);
    fputc(7, file);
    fclose(file);
    return 0;
}

/* An output that mixes an input's old and new bytes would belong to neither. */
START_TEST(inputs_that_change_meanwhile) {
    const char *in = make_source("changes"), *out = fixture_path("changed/out"), *packed = fixture_path("packed");
    fixture_make_folder(fixture_path("changed"));
    fixture_check_status(trf_compress_checkpoint(in, packed, NULL, NULL, &err), TRF_OK, &err);
    const struct timespec long_ago[2] = {{1000000, 0}, {1000000, 0}};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.progress = write_to;
    for (int decompresses = 0; decompresses < 2; decompresses++) {
        const char *path = decompresses ? packed : in;
        ck_assert_int_eq(utimensat(AT_FDCWD, path, long_ago, 0), 0);
        options.progress_context = (void *)path;
        const trf_status status = decompresses ? trf_decompress_checkpoint(path, out, &options, NULL, &err)
                                               : trf_compress_checkpoint(path, out, &options, NULL, &err);
        fixture_check_status(status, TRF_ERR_IO, &err);
        ck_assert_msg(strstr(err.message, "was changed while it was read") != NULL, "%s", err.message);
        ck_assert_int_eq(fixture_count_entries(fixture_path("changed")), 0);
    }
}
END_TEST

/* Writes to a file of the folder while the last tensor of another one is worked on. */
static int touch_late(void *context, const char *tensor, uint64_t done, uint64_t total) {
    (void)done, (void)total;
    if (strcmp(tensor, "z.weight") == 0)
        ck_assert_int_eq(utimensat(AT_FDCWD, context, NULL, 0), 0);
    return 0;
}

START_TEST(whatever_changes_meanwhile_is_named) {
    static const fixture_tensor last = {"z.weight", "BF16", {300, 520}, 2, 0};
    static const char index[] = "{\"weight_map\":{\"z.weight\":\"z.safetensors\"}}";
    static const struct {
        const char *name;
        trf_status status;
    } kFiles[] = {
        {"in.safetensors", TRF_ERR_IO}, {"z.safetensors", TRF_ERR_IO}, {"z.safetensors.index.json", TRF_ERR_IO},
        {"config.json", TRF_ERR_IO},    {"other.pth", TRF_ERR_IO},     {"train.log", TRF_OK}};
    const struct timespec long_ago[2] = {{1000000, 0}, {1000000, 0}};
    const char *source = fixture_path("late%d", _i), *packed = fixture_path("packed%d", _i);
    fixture_make_folder(source);
    fixture_write_safetensors(fixture_path("late%d/in.safetensors", _i), NULL, kTensors, NUM_TENSORS, 8, 1);
    fixture_write_safetensors(fixture_path("late%d/z.safetensors", _i), NULL, &last, 1, 8, 1);
    fixture_write(fixture_path("late%d/z.safetensors.index.json", _i), index, sizeof index - 1);
    fixture_write(fixture_path("late%d/config.json", _i), "{}", 2);
    fixture_write(fixture_path("late%d/other.pth", _i), "x", 1);
    fixture_write(fixture_path("late%d/train.log", _i), "x", 1);
    fixture_check_status(trf_compress_checkpoint(source, packed, NULL, NULL, &err), TRF_OK, &err);
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.progress = touch_late;
    for (int decompresses = 0; decompresses < 2; decompresses++) {
        const char *in = decompresses ? packed : source, *out = fixture_path("late%d-%d", _i, decompresses);
        const char *path = fixture_path("%s/%s", strrchr(in, '/') + 1, kFiles[_i].name);
        ck_assert_int_eq(utimensat(AT_FDCWD, path, long_ago, 0), 0);
        options.progress_context = (void *)path;
        const trf_status status = decompresses ? trf_decompress_checkpoint(in, out, &options, NULL, &err)
                                               : trf_compress_checkpoint(in, out, &options, NULL, &err);
        fixture_check_status(status, kFiles[_i].status, &err);
        ck_assert_int_eq(fixture_exists(out), status == TRF_OK);
        if (status != TRF_OK)
            ck_assert_msg(strstr(err.message, "was changed while it was read") && strstr(err.message, kFiles[_i].name),
                          "%s", err.message);
    }
}
END_TEST

START_TEST(file_systems_without_a_size) {
    struct statvfs info;
    if (statvfs("/proc", &info) == 0 && info.f_blocks == 0)
        ck_assert_uint_eq(trf_free_bytes("/proc"), UINT64_MAX);
    ck_assert_uint_lt(trf_free_bytes(fixture_path(".")), UINT64_MAX);
}
END_TEST

START_TEST(compressing_twice) {
    const char *compressed_path = make_packed("twice");
    check_compress_fails(compressed_path, "twice", "out", NULL, TRF_ERR_ARGUMENT);
    ck_assert_msg(strstr(err.message, "compressed already") != NULL, "%s", err.message);
    fixture_check_status(trf_verify_checkpoint(compressed_path, compressed_path, NULL, NULL, &err), TRF_ERR_ARGUMENT,
                         &err);
}
END_TEST

START_TEST(names_that_collide) {
    static const fixture_tensor kColliding[] = {{"a.weight", "BF16", {64, 256}, 2, 0},
                                                {"a.weight_trf", "F32", {3}, 1, 0}};
    const char *in = fixture_path("collide/in.safetensors"), *back = fixture_path("collide/back.safetensors");
    const char *const exclude[] = {"a.weight", NULL};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    fixture_make_folder(fixture_path("collide"));
    fixture_write_safetensors(in, NULL, kColliding, 2, 8, 2);
    check_compress_fails(in, "collide", "out", &options, TRF_ERR_ARGUMENT);
    ck_assert_msg(strstr(err.message, "a.weight_trf") != NULL, "%s", err.message);
    options.exclude = exclude;
    fixture_check_status(trf_compress_checkpoint(in, back, &options, NULL, &err), TRF_OK, &err);
}
END_TEST

START_TEST(includes_that_cannot_be) {
    const char *in = make_source("include");
    const char *const absent[] = {"a.weight", "d.weight", NULL}, *const flat[] = {"c.bias", NULL};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.include = absent;
    check_compress_fails(in, "include", "out", &options, TRF_ERR_NOT_FOUND);
    ck_assert_msg(strstr(err.message, "d.weight") != NULL, "%s", err.message);
    options.include = flat;
    check_compress_fails(in, "include", "out", &options, TRF_ERR_ARGUMENT);
    ck_assert_msg(strstr(err.message, "c.bias") != NULL, "%s", err.message);
}
END_TEST

typedef struct index_case {
    const char *text;
    trf_status status;
} index_case;

static const index_case kIndexes[] = {
    {"{\"weight_map\":{\"x\":\"s.safetensors\",\"y\":\"s.safetensors\"}}", TRF_OK},
    {"", TRF_ERR_FORMAT},
    {"[]", TRF_ERR_FORMAT},
    {"{}", TRF_ERR_FORMAT},
    {"{\"weight_map\":[]}", TRF_ERR_FORMAT},
    {"{\"weight_map\":{}}", TRF_ERR_FORMAT},
    {"{\"weight_map\":{\"x\":1,\"y\":\"s.safetensors\"}}", TRF_ERR_FORMAT},
    {"{\"weight_map\":{\"x\":\"../s.safetensors\",\"y\":\"s.safetensors\"}}", TRF_ERR_FORMAT},
    {"{\"weight_map\":{\"x\":\"\",\"y\":\"s.safetensors\"}}", TRF_ERR_FORMAT},
    {"{\"weight_map\":{\"x\":\"s.safetensors\",\"x\":\"s.safetensors\"}}", TRF_ERR_FORMAT},
    {"{\"weight_map\":{\"x\":\"s.safetensors\",\"y\":\"none.safetensors\"}}", TRF_ERR_NOT_FOUND},
    {"{\"weight_map\":{\"x\":\"s.safetensors\",\"y\":\"s.safetensors\",\"z\":\"s.safetensors\"}}", TRF_ERR_FORMAT},
    {"{\"weight_map\":{\"x\":\"s.safetensors\"}}", TRF_ERR_FORMAT},
    {"{\"weight_map\":{\"x\":\"s.safetensors\",\"y\":\"t.safetensors\",\"t\":\"t.safetensors\"}}", TRF_ERR_FORMAT},
};

START_TEST(indexes_give_their_status) {
    static const fixture_tensor kShard[] = {{"x", "U8", {3}, 1, 0}, {"y", "U8", {3}, 1, 0}};
    static const fixture_tensor kOther[] = {{"t", "U8", {3}, 1, 0}};
    const index_case *c = &kIndexes[_i];
    fixture_make_folder(fixture_path("index%d", _i));
    fixture_write_safetensors(fixture_path("index%d/s.safetensors", _i), NULL, kShard, 2, 8, 3);
    fixture_write_safetensors(fixture_path("index%d/t.safetensors", _i), NULL, kOther, 1, 8, 3);
    fixture_write(fixture_path("index%d/m.safetensors.index.json", _i), c->text, strlen(c->text));
    trf_checkpoint *checkpoint;
    trf_status status = trf_checkpoint_open(fixture_path("index%d", _i), &checkpoint, &err);
    fixture_check_status(status, c->status, &err);
    if (status != TRF_OK)
        ck_assert_msg(strstr(err.message, "m.safetensors.index.json") != NULL, "%s", err.message);
    trf_checkpoint_close(checkpoint);
}
END_TEST

#define IN "\"in.safetensors\""
#define MAP(entries) ("{\"weight_map\":{" entries "}}")

START_TEST(kept_index_that_does_not_fit) {
    static const char *const kTexts[] = {
        MAP("\"a.weight\":" IN ",\"b.weight\":" IN ",\"c.bias\":" IN),
        MAP("\"a.weight\":" IN ",\"b.weight\":" IN),
        MAP("\"a.weight\":\"other.safetensors\""),
        "{",
    };
    make_source("keptindex");
    fixture_write(fixture_path("keptindex/m.safetensors.index.json"), kTexts[0], strlen(kTexts[0]));
    const char *compressed_path = fixture_path("keptindex.packed"), *back = fixture_path("keptindex.back");
    const char *index = fixture_path("keptindex.packed/m.safetensors.index.json");
    fixture_check_status(trf_compress_checkpoint(fixture_path("keptindex"), compressed_path, NULL, NULL, &err), TRF_OK,
                         &err);
    fixture_check_status(trf_compress_checkpoint(compressed_path, back, NULL, NULL, &err), TRF_ERR_ARGUMENT, &err);
    for (size_t i = sizeof kTexts / sizeof kTexts[0]; i-- > 0;) {
        json_t *root = json_load_file(index, 0, NULL);
        json_object_set_new(json_object_get(root, "metadata"), "transfuse_source_index", json_string(kTexts[i]));
        ck_assert_int_eq(json_dump_file(root, index, 0), 0);
        json_decref(root);
        trf_status status = trf_verify_checkpoint(compressed_path, NULL, NULL, NULL, &err);
        fixture_check_status(status, i ? TRF_ERR_FORMAT : TRF_OK, &err);
        status = trf_decompress_checkpoint(compressed_path, back, NULL, NULL, &err);
        fixture_check_status(status, i ? TRF_ERR_FORMAT : TRF_OK, &err);
        ck_assert_int_eq(fixture_exists(back), i == 0);
    }
    fixture_check_same(fixture_path("keptindex"), back);
}
END_TEST

/* Overwrites bytes of a file. */
static void patch_file(const char *path, uint64_t offset, const void *bytes, size_t size) {
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, (long)offset, SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

static trf_tensor_info describe(const char *path, uint64_t index) {
    trf_checkpoint *checkpoint;
    trf_tensor_info info;
    fixture_check_status(trf_checkpoint_open(path, &checkpoint, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_tensor(checkpoint, index, &info, &err), TRF_OK, &err);
    trf_checkpoint_close(checkpoint);
    return info;
}

typedef struct damage_case {
    uint64_t tensor;
    int64_t offset; /* within the tensor; negative: from its end */
    uint8_t bytes[8];
    size_t size;
    trf_status status;
} damage_case;

static const damage_case kDamages[] = {
    {0, 0, {1}, 1, TRF_ERR_MAGIC},           {0, 4, {2}, 1, TRF_ERR_VERSION},
    {0, 12, {1}, 1, TRF_ERR_FORMAT},                                         /* rows differ from the kept header's */
    {0, 300, {0xFF}, 1, TRF_ERR_HEADER},                                     /* reserved bytes of the extension */
    {0, 48, {0xFF}, 1, TRF_ERR_HEADER},                                      /* blob_bytes */
    {0, -1, {0xA5}, 1, TRF_ERR_CHECKSUM},                                    /* the last tile */
    {1, 0, {1}, 1, TRF_ERR_MAGIC},           {1, 4, {5}, 1, TRF_ERR_HEADER}, /* one matrix more */
    {1, 4, {0, 0, 0, 0}, 4, TRF_ERR_HEADER}, {1, 4, {0xFF, 0xFF, 0xFF, 0x7F}, 4, TRF_ERR_TRUNCATED},
    {1, 8, {1}, 1, TRF_ERR_HEADER},          {1, 16, {1}, 1, TRF_ERR_HEADER},
    {1, 24, {8}, 1, TRF_ERR_HEADER},         {1, 40, {0xFF, 0xFF, 0xFF, 0xFF}, 4, TRF_ERR_HEADER},
    {1, -1, {0xA5}, 1, TRF_ERR_CHECKSUM},
};

START_TEST(damage_is_found) {
    static char name[32];
    snprintf(name, sizeof name, "damage%d", _i);
    const damage_case *c = &kDamages[_i];
    const char *compressed_path = make_packed(name), *back = fixture_path("%s/back", name);
    trf_tensor_info info = describe(compressed_path, c->tensor);
    uint64_t offset =
        c->offset < 0 ? info.file_offset + info.bytes - (uint64_t)-c->offset : info.file_offset + (uint64_t)c->offset;
    patch_file(compressed_path, offset, c->bytes, c->size);
    trf_status status = trf_verify_checkpoint(compressed_path, NULL, NULL, NULL, &err);
    fixture_check_status(status, c->status, &err);
    ck_assert_msg(strstr(err.message, compressed_path) != NULL, "%s", err.message);
    ck_assert_msg(strstr(err.message, c->tensor ? "b.weight" : "a.weight") != NULL, "%s", err.message);
    fixture_check_status(trf_decompress_checkpoint(compressed_path, back, NULL, NULL, &err), c->status, &err);
    ck_assert_int_eq(fixture_count_entries(fixture_path("%s", name)), 2);
}
END_TEST

START_TEST(truncated_files_are_found) {
    const char *compressed_path = make_packed("short");
    size_t size;
    void *bytes = fixture_read(compressed_path, &size);
    const char *cut = fixture_path("short/cut");
    for (size_t length = 0; length < size; length += length < 4096 ? 509 : 30011) {
        fixture_write(cut, bytes, length);
        trf_checkpoint *checkpoint;
        fixture_check_status(trf_checkpoint_open(cut, &checkpoint, &err), TRF_ERR_TRUNCATED, &err);
        ck_assert_ptr_null(checkpoint);
    }
    free(bytes);
}
END_TEST

START_TEST(sources_that_differ) {
    const char *compressed_path = make_packed("differ"), *source = fixture_path("differ/in.safetensors");
    fixture_check_status(trf_verify_checkpoint(compressed_path, source, NULL, NULL, &err), TRF_OK, &err);
    static const struct {
        uint64_t tensor, element;
        const char *where;
    } kPlaces[] = {{0, 0, "row 0, column 0"},
                   {0, 299 * 520 + 17, "row 299, column 17"},
                   {0, 256 * 520 + 256, "row 256, column 256"},
                   {1, 3 * 64 * 256 + 63 * 256 + 255, "matrix 3, row 63, column 255"},
                   {2, 999, "row 0, column 999"}};
    for (size_t i = 0; i < sizeof kPlaces / sizeof kPlaces[0]; i++) {
        trf_tensor_info info = describe(source, kPlaces[i].tensor);
        uint64_t offset = info.file_offset + kPlaces[i].element * (kPlaces[i].tensor == 2 ? 4 : 2);
        size_t size;
        uint8_t *bytes = fixture_read(source, &size), former = bytes[offset], changed = former ^ 1;
        patch_file(source, offset, &changed, 1);
        fixture_check_status(trf_verify_checkpoint(compressed_path, source, NULL, NULL, &err), TRF_ERR_MISMATCH, &err);
        ck_assert_msg(strstr(err.message, kPlaces[i].where) != NULL, "%s", err.message);
        ck_assert_uint_eq(err.offset, offset);
        patch_file(source, offset, &former, 1);
        free(bytes);
    }
    const char *less = fixture_path("differ/less"), *other = fixture_path("differ/other");
    fixture_write_safetensors(less, NULL, kTensors, 2, 8, 1);
    fixture_check_status(trf_verify_checkpoint(compressed_path, less, NULL, NULL, &err), TRF_ERR_NOT_FOUND, &err);
    fixture_check_status(trf_verify_checkpoint(less, source, NULL, NULL, &err), TRF_ERR_NOT_FOUND, &err);
    fixture_tensor reshaped[NUM_TENSORS];
    memcpy(reshaped, kTensors, sizeof reshaped);
    reshaped[0].shape[0] = 520, reshaped[0].shape[1] = 300;
    fixture_write_safetensors(other, NULL, reshaped, NUM_TENSORS, 8, 1);
    fixture_check_status(trf_verify_checkpoint(compressed_path, other, NULL, NULL, &err), TRF_ERR_MISMATCH, &err);
}
END_TEST

/* Rewrites a compressed file's header. edit gets the metadata and the text of the kept header, which it may replace. */
static void edit_metadata(const char *path, const char *out, const char *key, const char *value) {
    size_t size;
    uint8_t *bytes = fixture_read(path, &size);
    uint64_t text_bytes;
    memcpy(&text_bytes, bytes, 8);
    json_t *header = json_loadb((char *)bytes + 8, text_bytes, 0, NULL);
    json_t *metadata = json_object_get(header, "__metadata__");
    ck_assert_ptr_nonnull(metadata);
    if (value)
        json_object_set_new(metadata, key, json_string(value));
    else
        json_object_del(metadata, key);
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t length = strlen(text);
    FILE *file = fopen(out, "wb");
    ck_assert_uint_eq(fwrite(&length, 1, 8, file), 8);
    ck_assert_uint_eq(fwrite(text, 1, length, file), length);
    ck_assert_uint_eq(fwrite(bytes + 8 + text_bytes, 1, size - 8 - text_bytes, file), size - 8 - text_bytes);
    ck_assert_int_eq(fclose(file), 0);
    free(text);
    free(bytes);
    json_decref(header);
}

typedef struct kept_case {
    const char *key, *value;
    trf_status status;
} kept_case;

#define A_ENTRY "\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[300,520],\"data_offsets\":[0,312000]}"
#define B_ENTRY "\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[4,64,256],\"data_offsets\":[312000,443072]}"
#define C_ENTRY "\"c.bias\":{\"dtype\":\"F32\",\"shape\":[1000],\"data_offsets\":[443072,447072]}"

static const kept_case kKept[] = {
    {"transfuse_source_header", "{" A_ENTRY "," B_ENTRY "," C_ENTRY "}", TRF_OK},
    {"transfuse_format", "2", TRF_ERR_VERSION},
    {"transfuse_source_header", "", TRF_ERR_FORMAT},
    {"transfuse_source_header", "{}", TRF_ERR_FORMAT},
    {"transfuse_source_header", "{" A_ENTRY "," B_ENTRY "}", TRF_ERR_FORMAT},
    {"transfuse_source_header",
     "{" A_ENTRY "," B_ENTRY ",\"d\":{\"dtype\":\"F32\",\"shape\":[1000],\"data_offsets\":[443072,447072]}}",
     TRF_ERR_FORMAT},
    {"transfuse_source_header",
     "{" A_ENTRY "," B_ENTRY ",\"c.bias\":{\"dtype\":\"I32\",\"shape\":[1000],\"data_offsets\":[443072,447072]}}",
     TRF_ERR_FORMAT},
    {"transfuse_source_header",
     "{" A_ENTRY "," B_ENTRY ",\"c.bias\":{\"dtype\":\"F32\",\"shape\":[500],\"data_offsets\":[443072,445072]}}",
     TRF_ERR_FORMAT},
    {"transfuse_source_header",
     "{\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[520,300],\"data_offsets\":[0,312000]}," B_ENTRY "," C_ENTRY "}",
     TRF_ERR_FORMAT},
    {"transfuse_source_header",
     "{\"a.weight\":{\"dtype\":\"F16\",\"shape\":[300,520],\"data_offsets\":[0,312000]}," B_ENTRY "," C_ENTRY "}",
     TRF_ERR_FORMAT},
    {"transfuse_source_header",
     "{" A_ENTRY ",\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[256,256],\"data_offsets\":[312000,443072]}," C_ENTRY "}",
     TRF_ERR_FORMAT},
};

START_TEST(kept_headers_give_their_status) {
    static char name[32];
    snprintf(name, sizeof name, "kept%d", _i);
    const char *compressed_path = make_packed(name), *edited = fixture_path("%s/edited", name),
               *back = fixture_path("%s/back", name);
    edit_metadata(compressed_path, edited, kKept[_i].key, kKept[_i].value);
    trf_status status = trf_decompress_checkpoint(edited, back, NULL, NULL, &err);
    fixture_check_status(status, kKept[_i].status, &err);
    ck_assert_int_eq(fixture_exists(back), status == TRF_OK);
}
END_TEST

/* A kept header that lists a tensor twice, once by its blob's name, and leaves another one out. */
START_TEST(no_tensor_is_left_out) {
    const char *compressed_path = make_packed("left"), *edited = fixture_path("left/edited"),
               *back = fixture_path("left/back");
    trf_checkpoint_file file;
    fixture_check_status(trf_checkpoint_file_open(compressed_path, &file, &err), TRF_OK, &err);
    const trf_tensor *blob = trf_safetensors_find(&file.own_header, "a.weight_trf");
    const uint64_t weight_bytes = 2 * 300 * 520, blob_bytes = blob->end - blob->begin, bias_bytes = 4000;
    char header[512];
    snprintf(header, sizeof header,
             "{\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[300,520],\"data_offsets\":[0,%" PRIu64 "]},"
             "\"a.weight_trf\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]},"
             "\"c.bias\":{\"dtype\":\"F32\",\"shape\":[1000],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}}",
             weight_bytes, blob_bytes, weight_bytes, weight_bytes + blob_bytes, weight_bytes + blob_bytes,
             weight_bytes + blob_bytes + bias_bytes);
    trf_checkpoint_file_free(&file);
    edit_metadata(compressed_path, edited, "transfuse_source_header", header);
    fixture_check_status(trf_decompress_checkpoint(edited, back, NULL, NULL, &err), TRF_ERR_FORMAT, &err);
    ck_assert_msg(strstr(err.message, "tensor 'a.weight': the kept source header does not fit: another tensor has its "
                                      "blob's name"),
                  "%s", err.message);
    ck_assert(!fixture_exists(back));
}
END_TEST

START_TEST(header_need_not_be_kept) {
    const char *compressed_path = make_packed("unkept"), *source = fixture_path("unkept/in.safetensors");
    const char *edited = fixture_path("unkept/edited"), *bare = fixture_path("unkept/bare"),
               *back = fixture_path("unkept/back");
    edit_metadata(compressed_path, edited, "transfuse_source_header", NULL);
    edit_metadata(edited, bare, "transfuse_format", NULL);
    for (int i = 0; i < 2; i++) {
        trf_checkpoint_options options;
        trf_checkpoint_options_init(&options);
        options.overwrite = 1;
        fixture_check_status(trf_verify_checkpoint(i ? bare : edited, source, NULL, NULL, &err), TRF_OK, &err);
        fixture_check_status(trf_decompress_checkpoint(i ? bare : edited, back, &options, NULL, &err), TRF_OK, &err);
        /* The tensors are still the source's, though they may lie elsewhere. */
        fixture_check_status(trf_verify_checkpoint(back, source, NULL, NULL, &err), TRF_OK, &err);
        fixture_check_status(trf_verify_checkpoint(compressed_path, back, NULL, NULL, &err), TRF_OK, &err);
    }
}
END_TEST

START_TEST(what_cannot_be_carried_over) {
    make_source("carry");
    fixture_make_folder(fixture_path("carried"));
    ck_assert_int_eq(mkfifo(fixture_path("carry/fifo"), 0666), 0);
    check_compress_fails(fixture_path("carry"), "carried", "out", NULL, TRF_ERR_UNSUPPORTED);
    ck_assert_ptr_eq(strstr(err.message, "cannot be carried over: "), err.message);
    ck_assert_int_eq(unlink(fixture_path("carry/fifo")), 0);
    ck_assert_int_eq(symlink("../carry", fixture_path("carry/up")), 0); /* the folder itself */
    check_compress_fails(fixture_path("carry"), "carried", "out", NULL, TRF_ERR_UNSUPPORTED);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("checkpoint_failures");
    TCase *tests = tcase_create("failures");
    tcase_add_unchecked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_test(tests, inputs_that_are_none);
    tcase_add_test(tests, outputs_that_exist);
    tcase_add_test(tests, directories_that_exist);
    tcase_add_test(tests, outputs_that_cannot_be);
    tcase_add_test(tests, full_disk_leaves_nothing);
    tcase_add_test(tests, cancelling_leaves_nothing);
    tcase_add_test(tests, inputs_that_change_meanwhile);
    tcase_add_loop_test(tests, whatever_changes_meanwhile_is_named, 0, 6);
    tcase_add_test(tests, file_systems_without_a_size);
    tcase_add_test(tests, compressing_twice);
    tcase_add_test(tests, names_that_collide);
    tcase_add_test(tests, includes_that_cannot_be);
    tcase_add_loop_test(tests, indexes_give_their_status, 0, sizeof kIndexes / sizeof kIndexes[0]);
    tcase_add_test(tests, kept_index_that_does_not_fit);
    tcase_add_loop_test(tests, damage_is_found, 0, sizeof kDamages / sizeof kDamages[0]);
    tcase_add_test(tests, truncated_files_are_found);
    tcase_add_test(tests, sources_that_differ);
    tcase_add_loop_test(tests, kept_headers_give_their_status, 0, sizeof kKept / sizeof kKept[0]);
    tcase_add_test(tests, no_tensor_is_left_out);
    tcase_add_test(tests, header_need_not_be_kept);
    tcase_add_test(tests, what_cannot_be_carried_over);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
