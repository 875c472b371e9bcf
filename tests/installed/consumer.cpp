/* SPDX-License-Identifier: Apache-2.0 */
#include <string>
#include <transfuse.h>
#include <transfuse/cpu.h>
#include <transfuse/device_memory.h>
#include <transfuse/experts.h>
#include <transfuse/groups.h>
#include <transfuse/layouts.h>
#include <transfuse/stacks.h>
#include <transfuse/tuning.h>

int main() {
    return std::string(trf_status_name(TRF_OK)) != "TRF_OK" || std::string(trf_path_name(TRF_PATH_WIDE)) != "wide";
}
