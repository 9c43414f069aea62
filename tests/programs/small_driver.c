/* A driver that uses almost no stack: the stack use of a thread is then that of program and library. Built as
 * libcuda.so.1. */
int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

/* CUDA_ERROR_NO_DEVICE */
int cuDeviceGet(int *device, int ordinal)
{
    (void)device;
    (void)ordinal;
    return 100;
}
