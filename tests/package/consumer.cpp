#include <string>
#include <transfuse.h>

int main() { return std::string(trf_status_name(TRF_OK)) != "TRF_OK"; }
