/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* strdup */
#endif
#include "trf_resume.h"

#include "trf_checksum.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct trf_resume_head {
    char magic[8];
    uint64_t fingerprint;
    uint64_t checksum; /* of what is before it */
} trf_resume_head;

static const char kMagic[8] = {'T', 'R', 'F', 'R', 'E', 'S', '0', '1'};

static_assert(sizeof(trf_resume_head) == 24, "the journal's head");
static_assert(sizeof(trf_resume_record) == 64, "a record of the journal");

/* ---- what an output depends on ---- */

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size) {
    return trf_checksum_best()(bytes, size, hash);
}

static uint64_t hash_number(uint64_t hash, uint64_t number) { return hash_bytes(hash, &number, sizeof number); }

/* The NUL at the end keeps "a", "b" apart from "ab". */
static uint64_t hash_text(uint64_t hash, const char *text) {
    return text ? hash_bytes(hash, text, strlen(text) + 1) : hash_number(hash, 0);
}

static uint64_t hash_texts(uint64_t hash, const char *const *texts) {
    for (size_t i = 0; texts && texts[i]; i++)
        hash = hash_text(hash, texts[i]);
    return hash_text(hash, NULL);
}

static uint64_t hash_stamp(uint64_t hash, const trf_file_stamp *stamp) {
    hash = hash_number(hash, stamp->bytes);
    hash = hash_number(hash, (uint64_t)stamp->seconds);
    return hash_number(hash, (uint64_t)stamp->nanoseconds);
}

static uint64_t hash_model(uint64_t hash, const trf_checkpoint *model) {
    hash = hash_text(hash, model->name);
    hash = hash_number(hash, (uint64_t)model->carried_over);
    for (size_t i = 0; i < model->num_files; i++) {
        const trf_checkpoint_file *file = &model->files[i];
        hash = hash_text(hash, file->name);
        hash = hash_stamp(hash, &file->stamp);
        hash = hash_bytes(hash, file->own_header.text, file->own_header.text_bytes);
    }
    for (size_t i = 0; i < model->num_indexes; i++) {
        hash = hash_text(hash, model->indexes[i].name);
        hash = hash_stamp(hash, &model->indexes[i].stamp);
    }
    hash = hash_number(hash, (uint64_t)model->has_config);
    return model->has_config ? hash_stamp(hash, &model->config_stamp) : hash;
}

uint64_t trf_resume_fingerprint(const trf_checkpoint *checkpoint, const trf_checkpoint_options *options) {
    const trf_encode_options *encode = &options->encode;
    const uint64_t numbers[] = {TRF_VERSION_MAJOR,
                                TRF_VERSION_MINOR,
                                TRF_VERSION_PATCH,
                                (uint64_t)encode->codec,
                                (uint64_t)encode->favor,
                                (uint64_t)encode->granularity,
                                encode->scale_group_size,
                                (uint64_t)encode->verify,
                                encode->probability_bits,
                                encode->slab_cols,
                                (uint64_t)options->embeddings,
                                (uint64_t)options->store_only,
                                (uint64_t)checkpoint->is_folder};
    uint64_t hash = hash_bytes(0, numbers, sizeof numbers);
    hash = hash_bytes(hash, &encode->bits, sizeof encode->bits);
    hash = hash_texts(hash, options->include);
    hash = hash_texts(hash, options->exclude);
    hash = hash_texts(hash, options->skip_extra);
    const trf_checkpoint *model;
    for (size_t i = 0; (model = trf_checkpoint_model(checkpoint, i)); i++)
        hash = hash_model(hash, model);
    return hash;
}

uint64_t trf_resume_key(const char *part, const char *file, const char *tensor) {
    return hash_text(hash_text(hash_text(1, part), file), tensor);
}

/* ---- the journal ---- */

static uint64_t record_checksum(const trf_resume_record *record) {
    return hash_bytes(0, record, offsetof(trf_resume_record, checksum));
}

static trf_status append(trf_resume *resume, const trf_resume_record *record, trf_error *err) {
    if (resume->count == resume->capacity) {
        const size_t capacity = resume->capacity ? 2 * resume->capacity : 64;
        trf_resume_record *records = realloc(resume->records, capacity * sizeof *records);
        if (!records)
            return trf_fail_memory(err, capacity * sizeof *records);
        resume->records = records, resume->capacity = capacity;
    }
    resume->records[resume->count++] = *record;
    return TRF_OK;
}

/* @return whether an open file is a journal of this user's, and of an output like this. Anybody's would do in a folder
 * that all may write to, and the weights are whatever a journal vouches for. */
static int is_own_journal(const trf_resume *resume, const trf_file *file) {
    struct stat info;
    trf_resume_head head;
    return fstat(file->fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
           (info.st_mode & 0022) == 0 && trf_file_read(file, 0, &head, sizeof head, NULL) == TRF_OK &&
           memcmp(head.magic, kMagic, sizeof kMagic) == 0 && head.fingerprint == resume->fingerprint &&
           head.checksum == hash_bytes(0, &head, offsetof(trf_resume_head, checksum));
}

trf_status trf_resume_open(trf_resume *resume, const char *path, int *matches, trf_error *err) {
    trf_file file = {.fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), .path = path};
    trf_resume_record record;
    trf_status status = TRF_OK;
    *matches = file.fd >= 0 && is_own_journal(resume, &file);
    uint64_t end = sizeof(trf_resume_head);
    while (*matches && status == TRF_OK && trf_file_read(&file, end, &record, sizeof record, NULL) == TRF_OK &&
           record.checksum == record_checksum(&record)) {
        status = append(resume, &record, err);
        end += sizeof record;
    }
    if (*matches && status == TRF_OK && !(resume->path = strdup(path)))
        status = trf_fail_memory(err, strlen(path));
    if (*matches && status == TRF_OK) {
        resume->file = (trf_file){.fd = file.fd, .path = resume->path};
        resume->continues = 1;
        return TRF_OK;
    }
    resume->count = 0;
    trf_file_close(&file);
    return status;
}

trf_status trf_resume_create(trf_resume *resume, const char *path, trf_error *err) {
    trf_resume_head head = {.fingerprint = resume->fingerprint};
    memcpy(head.magic, kMagic, sizeof kMagic);
    head.checksum = hash_bytes(0, &head, offsetof(trf_resume_head, checksum));
    if (!(resume->path = strdup(path)))
        return trf_fail_memory(err, strlen(path));
    trf_status status = trf_file_create(resume->path, 0600, &resume->file, err);
    if (status != TRF_OK) {
        free(resume->path); /* so that nobody else's file of this name is taken for this run's */
        resume->path = NULL;
        return status;
    }
    return trf_file_write(&resume->file, 0, &head, sizeof head, err);
}

static const trf_resume_record *find(const trf_resume *resume, uint64_t key) {
    for (size_t i = resume->count; i--;)
        if (resume->records[i].key == key)
            return &resume->records[i];
    return NULL;
}

static trf_status blob_checksum(const trf_resume_place *place, uint64_t bytes, trf_job *job, uint64_t *checksum,
                                trf_error *err) {
    uint64_t hash = 0, offset = place->offset;
    while (bytes) {
        const uint64_t part = bytes < TRF_COPY_BYTES ? bytes : TRF_COPY_BYTES;
        trf_status status = trf_file_read(place->file, offset, job->buffer, part, err);
        if (status != TRF_OK)
            return status;
        hash = hash_bytes(hash, job->buffer, (size_t)part);
        offset += part, bytes -= part;
    }
    *checksum = hash;
    return TRF_OK;
}

trf_status trf_resume_take(trf_resume *resume, const trf_resume_place *place, trf_job *job,
                           const trf_resume_record **done, trf_error *err) {
    const trf_resume_record *record = resume->continues ? find(resume, place->key) : NULL;
    uint64_t checksum = 0;
    *done = NULL;
    if (!record)
        return TRF_OK;
    if (record->blob_bytes < place->kept_below) {
        trf_status status = blob_checksum(place, record->blob_bytes, job, &checksum, err);
        if (status == TRF_ERR_TRUNCATED) /* the journal reached the disk and the blob did not */
            return TRF_OK;
        if (status != TRF_OK)
            return status;
        if (checksum != record->blob_checksum)
            return TRF_OK;
    }
    resume->taken++;
    *done = record;
    return TRF_OK;
}

trf_status trf_resume_add_tensor(trf_resume *resume, const trf_resume_place *place, trf_job *job,
                                 trf_resume_record *record, trf_error *err) {
    record->key = place->key;
    record->reserved = 0;
    trf_status status = blob_checksum(place, record->blob_bytes, job, &record->blob_checksum, err);
    if (status != TRF_OK)
        return status;
    record->checksum = record_checksum(record);
    status = trf_file_write(&resume->file, sizeof(trf_resume_head) + resume->count * sizeof *record, record,
                            sizeof *record, err);
    return status == TRF_OK ? append(resume, record, err) : status;
}

int trf_resume_is_worth_keeping(const trf_resume *resume) {
    return resume->path && resume->count > 0 && !resume->is_unsound;
}

/* ---- the temporary ---- */

/* A folder that is being cleaned. */
typedef struct cleaning {
    trf_resume *resume;
    trf_resume_keeps_fn *keeps;
    const void *keeps_context;
} cleaning;

/* Removes one entry unless it stays, or something in it does. A trf_folder_entry_fn. */
static trf_status clean_entry(void *context, const char *path, const char *below, trf_error *err) {
    const cleaning *work = context;
    struct stat info;
    if (lstat(path, &info) != 0)
        return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot examine");
    if (S_ISDIR(info.st_mode)) {
        if (chmod(path, 0700) != 0) /* it may have got the permissions of its source already */
            return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot set the permissions");
        const trf_status status = trf_folder_each(path, below, clean_entry, context, err);
        if (status == TRF_OK && rmdir(path) != 0 && errno != ENOTEMPTY && errno != EEXIST)
            return trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot remove");
        return status;
    }
    const int stays = S_ISREG(info.st_mode) ? work->keeps(work->keeps_context, below) : 0;
    if (stays < 0)
        return trf_fail_memory(err, strlen(below));
    if (!stays)
        return unlink(path) == 0 ? TRF_OK : trf_fail_errno(err, path, TRF_NO_OFFSET, "cannot remove");
    work->resume->held_bytes += (uint64_t)info.st_blocks * 512;
    return TRF_OK;
}

trf_status trf_resume_clean(trf_resume *resume, const char *folder, trf_resume_keeps_fn *keeps, const void *context,
                            trf_error *err) {
    cleaning work = {resume, keeps, context};
    return trf_folder_each(folder, "", clean_entry, &work, err);
}

void trf_resume_forget(trf_resume *resume) {
    if (resume->path)
        unlink(resume->path);
    free(resume->path);
    resume->path = NULL;
}

void trf_resume_close(trf_resume *resume) {
    trf_file_close(&resume->file);
    free(resume->path);
    resume->path = NULL;
    resume->continues = 0;
    resume->count = 0;
}

void trf_resume_end(trf_resume *resume) {
    trf_resume_close(resume);
    free(resume->records);
    *resume = (trf_resume){.file = {.fd = -1}};
}
