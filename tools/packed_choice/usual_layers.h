/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of docs/performance/packed.csv, as options name them (cli_parse_list, cli_parse_shape). */
#ifndef USUAL_LAYERS_H
#define USUAL_LAYERS_H

#define USUAL_LAYERS                                                                                                   \
    "65536x8192,28672x8192,28672x4096,8192x8192,18944x3584,3584x18944,14336x4096,4096x14336,5120x5120,6144x4096,"      \
    "4096x4096,2048x5632,1024x4096,1024x1024"

#endif
