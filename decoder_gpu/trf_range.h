/* Named ranges of host time in the domain "transfuse", for profilers that listen to NVTX, such as Nsight Systems. Without one a range costs two calls that return at once; where the toolkit has no
 * nvtx3 there are none. */
#ifndef TRF_RANGE_H
#define TRF_RANGE_H

/* Ranges nest: each push is followed by a pop of the same thread. name: static. */
void trf_range_push(const char *name);
void trf_range_pop(void);

#endif
