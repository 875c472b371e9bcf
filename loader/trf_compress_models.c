/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_compress_models.h"

#include "trf_compress_check.h"
#include "trf_source_tensors.h"

#include <stdlib.h>

trf_selection_rules trf_compression_rules(const trf_compression *work, size_t file) {
    trf_selection_rules rules = work->rules;
    rules.is_adapter = work->is_adapter[file];
    return rules;
}

static trf_status check_compressible(const trf_checkpoint *checkpoint, const trf_compression *work, trf_error *err) {
    trf_status status = TRF_OK;
    for (size_t i = 0; i < checkpoint->num_files && status == TRF_OK; i++) {
        const trf_selection_rules rules = trf_compression_rules(work, i);
        status = trf_check_compressible_file(checkpoint, &checkpoint->files[i], &rules, &work->fp8, err);
    }
    for (size_t i = 0; i < checkpoint->num_indexes && status == TRF_OK; i++)
        if (json_object_get(json_object_get(checkpoint->indexes[i].root, "metadata"), TRF_METADATA_INDEX))
            status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "%s: is the index of a compressed checkpoint",
                              checkpoint->indexes[i].path);
    return status;
}

/* Looks for adapters beside a model. They stay as they are, for the programs that read them, unless all is only
 * stored. */
static trf_status find_adapters(const trf_checkpoint *checkpoint, trf_compression *work, trf_error *err) {
    const size_t count = checkpoint->num_files;
    trf_status status = TRF_OK;
    work->counts = calloc(count + 1, sizeof *work->counts);
    work->is_adapter = calloc(count + 1, 1);
    if (!work->counts || !work->is_adapter)
        return trf_fail_memory(err, count * sizeof *work->counts);
    for (size_t i = 0; i < count && !work->rules.is_stored && !*work->obstacle && status == TRF_OK; i++) {
        const trf_tensor *tensor;
        status = trf_find_adapter_tensor(checkpoint, &checkpoint->files[i], &tensor, err);
        work->is_adapter[i] = status == TRF_OK && tensor;
        if (work->is_adapter[i])
            trf_job_note(work->job, "%.500s: is an adapter (it has tensors such as '%.200s'), and stays as it is",
                         checkpoint->files[i].path, tensor->name);
    }
    return status;
}

/* Reads from config.json and the tensors what the choice of tensors depends on. */
static trf_status read_rules(const trf_checkpoint *checkpoint, trf_compression *work, trf_error *err) {
    const trf_checkpoint_options *options = &work->job->options;
    trf_status status = trf_source_config_read(checkpoint, &work->source, err);
    if (status == TRF_OK && !options->store_only)
        status = trf_fp8_model_read(checkpoint, &work->source, &work->fp8, work->obstacle, err);
    if (status == TRF_OK && !*work->obstacle)
        status = trf_source_find_obstacle(checkpoint, &work->source, &work->fp8, work->obstacle, err);
    /* The models of a pipeline that could be loaded before can still be loaded after compressing. */
    const int needs_storing = !checkpoint->name || *work->obstacle || work->source.failure.status != TRF_OK;
    work->rules = (trf_selection_rules){.options = options,
                                        .part = checkpoint->name,
                                        .tied_embeddings = trf_source_config_is_tied(&work->source),
                                        .is_stored = options->store_only && needs_storing};
    if (status == TRF_OK)
        status = find_adapters(checkpoint, work, err);
    /* With `include` or `embeddings` config.json would not have been used. A folder whose config.json cannot be read is
     * refused. */
    if (status == TRF_OK && work->source.failure.status != TRF_OK && !checkpoint->is_folder && !options->embeddings &&
        (!options->include || !options->include[0]))
        trf_job_note(work->job, "%.700s; it counts as missing, and a tied output as any other matrix",
                     work->source.failure.message);
    return status;
}

/* Reads and checks one model before anything is written. work: release with trf_compression_free in every case. Errors:
 * TRF_ERR_UNSUPPORTED if no program could load it once it is compressed; the message says why. */
static trf_status prepare_model(const trf_checkpoint *model, trf_job *job, trf_compression *work, trf_error *err) {
    *work = (trf_compression){.job = job, .model = model};
    trf_status status = read_rules(model, work, err);
    if (status == TRF_OK)
        status = check_compressible(model, work, err);
    if (status == TRF_OK && model->is_folder)
        work->dtype = work->fp8.is_fp8 ? "bfloat16" : trf_source_find_dtype(model, &work->source);
    if (status == TRF_OK && model->is_folder)
        status = trf_model_config_compress(&work->source, &job->options.encode, work->rules.is_stored, work->dtype,
                                           &work->config, err);
    if (status == TRF_OK)
        status = trf_source_check(model, &work->source, work->obstacle, job, err);
    return status;
}

void trf_compression_free(trf_compression *work) {
    trf_model_config_free(&work->config);
    trf_fp8_model_free(&work->fp8);
    trf_source_config_free(&work->source);
    free(work->counts);
    free(work->is_adapter);
}

trf_status trf_compression_prepare(trf_checkpoint *checkpoint, trf_job *job, trf_compression *works,
                                   trf_rewrite_part *parts, size_t *num_parts, trf_error *err) {
    trf_status status = trf_check_patterns(checkpoint, job->options.include, "include", err);
    if (status == TRF_OK)
        status = trf_check_patterns(checkpoint, job->options.exclude, "exclude", err);
    if (status == TRF_OK && checkpoint->num_parts)
        status = trf_source_check_pipeline(checkpoint, job, err);
    const size_t count = checkpoint->num_parts ? checkpoint->num_parts : 1;
    for (size_t i = 0; i < count && status == TRF_OK; i++) {
        trf_error failure = {0};
        trf_checkpoint *model = checkpoint->num_parts ? checkpoint->parts[i] : checkpoint;
        status = prepare_model(model, job, &works[i], &failure);
        const int is_unreadable =
            status != TRF_OK && !trf_lacks_memory(status) && status == works[i].source.failure.status;
        if ((status == TRF_ERR_UNSUPPORTED || is_unreadable) && checkpoint->num_parts) {
            trf_job_note(job, "%s/ is carried over as it is: %s", model->name, failure.message);
            model->carried_over = 1;
            status = TRF_OK;
            continue;
        }
        if (status != TRF_OK && err)
            *err = failure;
        parts[*num_parts] = (trf_rewrite_part){model, &works[i].config, &works[i]};
        *num_parts += status == TRF_OK;
    }
    return status;
}
