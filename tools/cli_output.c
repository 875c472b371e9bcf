/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_output.h"

#include "cli_messages.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* @return whether a path leads to an existing folder. */
static int is_folder(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

static int is_file(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && S_ISREG(found.st_mode);
}

static int ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Only the output itself is made, so the folders on the way to it must exist. */
static cli_exit check_parents(const char *out) {
    char folder[PATH_MAX];
    const size_t length = strlen(out);
    if (length >= sizeof folder)
        return CLI_OK; /* the system will say that it is too long */
    for (const char *slash = strchr(out + 1, '/'); slash && slash[strspn(slash, "/")]; slash = strchr(slash + 1, '/')) {
        struct stat found;
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - out), out);
        if (stat(folder, &found) != 0 && errno == ENOENT)
            return cli_fail(TRF_ERR_IO, "%s: there is no folder %s; make it first", out, folder);
        if (stat(folder, &found) == 0 && !S_ISDIR(found.st_mode))
            return cli_fail(TRF_ERR_IO, "%s: %s is not a folder", out, folder);
    }
    return CLI_OK;
}

cli_exit cli_output_check(const char *command, const char *in, const char *out) {
    if (!out)
        return CLI_OK;
    const int in_is_file = in && is_file(in) && !ends_with(in, ".json");
    const char *const example = in_is_file ? base_name(in) : "FILE";
    if ((!in || in_is_file) && ends_with(out, "/"))
        return cli_usage_error(command, "-o %s: names a folder, but a file is written; say %s%s", out, out, example);
    if ((!in || in_is_file) && is_folder(out))
        return cli_fail(TRF_ERR_EXISTS,
                        "%s: exists and is a directory; it is not replaced by a file: name one, such as %s/%s", out,
                        out, example);
    if (in && is_folder(in) && is_file(out))
        return cli_fail(TRF_ERR_EXISTS, "%s: exists and is a file; it is not replaced by the folder that is made of %s",
                        out, in);
    return check_parents(out);
}

/* Resolves all links in a path but the last component, which may be a link: a link in a folder belongs to the folder,
 * wherever it leads. @return malloc'd, or NULL. */
static char *resolve_folder(const char *path) {
    char folder[PATH_MAX], place[PATH_MAX];
    const int length = (int)(base_name(path) - path);
    if (strlen(path) >= sizeof folder)
        return NULL;
    snprintf(folder, sizeof folder, "%.*s", length, path);
    if (!realpath(length ? folder : ".", place) || strlen(place) + strlen(path) >= sizeof place)
        return NULL;
    snprintf(place + strlen(place), sizeof place - strlen(place), "/%s", base_name(path));
    return strdup(place);
}

/* @return the file that a path leads to, or would if it existed; malloc'd, or NULL. */
static char *resolve_file(const char *path) {
    char *const place = realpath(path, NULL);
    return place ? place : resolve_folder(path);
}

int cli_output_is_same(const char *one, const char *other) {
    char *const a = resolve_file(one), *const b = resolve_file(other);
    const int is_same = strcmp(one, other) == 0 || (a && b && strcmp(a, b) == 0);
    free(a);
    free(b);
    return is_same;
}

static int is_below(const char *folder, const char *path) {
    const size_t length = folder ? strlen(folder) : 0;
    return length && path && strncmp(path, folder, length) == 0 && (path[length] == '/' || folder[length - 1] == '/');
}

/* An index stands for its folder. */
static cli_exit check_input(const char *in, const char *out) {
    char *const place = ends_with(in, ".json") ? resolve_folder(in) : realpath(in, NULL);
    char *const link = resolve_folder(out), *const target = realpath(out, NULL);
    struct stat in_found, out_found;
    cli_exit status = CLI_OK;
    if (place && ends_with(in, ".json"))
        *strrchr(place, '/') = 0;
    if (stat(in, &in_found) == 0 && stat(out, &out_found) == 0 && in_found.st_dev == out_found.st_dev &&
        in_found.st_ino == out_found.st_ino)
        status = cli_fail(TRF_ERR_ARGUMENT, "%s: the output is the input", out);
    else if (is_below(place, link) || is_below(place, target))
        status = cli_fail(TRF_ERR_ARGUMENT, "%s: exists, and belongs to the input %s; it is not replaced", out, in);
    free(place);
    free(link);
    free(target);
    return status;
}

cli_exit cli_output_check_inputs(const char *const *inputs, size_t count, const char *out) {
    struct stat found;
    cli_exit status = CLI_OK;
    if (lstat(out, &found) != 0 || S_ISDIR(found.st_mode))
        return CLI_OK;
    for (size_t i = 0; i < count && status == CLI_OK; i++)
        status = inputs[i] ? check_input(inputs[i], out) : CLI_OK;
    return status;
}

cli_exit cli_report_output_error(const cli_options *options, const trf_error *err) {
    static const char replaceable[] = "exists already"; /* what -f would refuse as well has another message */
    if (err->status != TRF_ERR_EXISTS || options->force || !ends_with(err->message, replaceable))
        return cli_report_error(err);
    return cli_fail(err->status, "%s; -f replaces it%s", err->message,
                    options->output && is_folder(options->output) ? " if nothing else is in it" : "");
}

cli_exit cli_run_rewrite(cli_run *run, cli_rewrite_fn *rewrite, void (*print_summary)(const cli_run *run)) {
    const cli_options *options = run->options;
    const char *in = options->arguments[0];
    trf_error err = {0};
    cli_exit status = cli_output_check(run->command, in, options->output);
    if (status == CLI_OK) {
        trf_status failed = rewrite(in, options->output, &run->library, &run->report, &err);
        cli_run_end(run, failed);
        if (!failed && cli_run_wants_summary(run))
            print_summary(run);
        status = failed ? cli_report_output_error(options, &err) : cli_report_json(run);
    }
    cli_run_free(run);
    return status;
}
