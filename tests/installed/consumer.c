/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <transfuse.h>

int main(void) { return strcmp(trf_status_name(TRF_OK), "TRF_OK") != 0; }
