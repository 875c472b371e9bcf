/* JSON output through Jansson. A failed allocation inside it yields NULL, which its setters refuse and which
 * json_dumpf reports at the end. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <jansson.h>

/* A JSON string of any text: bytes that are not UTF-8, as a path may hold, become '?'. */
json_t *cli_json_text(const char *text);

#endif
