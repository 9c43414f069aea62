/* Built as a hook library whose version is not that of the preload library. */
void *gcgroup_hook_start(const void *bridge);

void *gcgroup_hook_start(const void *bridge)
{
    (void)bridge;
    return 0;
}
