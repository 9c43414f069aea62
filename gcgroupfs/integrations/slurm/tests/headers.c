/* Compares src/spank.rs, src/step.rs and scripts/task-prolog with Slurm's headers: does not compile where they
   differ. */
#include <stddef.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>

_Static_assert(ESPANK_SUCCESS == 0, "SUCCESS");
_Static_assert(S_JOB_ID == 2 && S_JOB_STEPID == 3, "Item");
_Static_assert(S_CTX_LOCAL == 1 && S_CTX_REMOTE == 2 && S_CTX_ALLOCATOR == 3, "Context");
_Static_assert(SLURM_BATCH_SCRIPT == -5u && SLURM_EXTERN_CONT == -4u && SLURM_INTERACTIVE_STEP == -6u, "NAMED_STEPS");
_Static_assert(offsetof(struct spank_option, arginfo) == 8 && offsetof(struct spank_option, usage) == 16 &&
                   offsetof(struct spank_option, has_arg) == 24 && offsetof(struct spank_option, val) == 28 &&
                   offsetof(struct spank_option, cb) == 32 && sizeof(struct spank_option) == 40,
               "RawOption");

typedef int callback(spank_t, int, char **);
spank_opt_cb_f option_callback = (int (*)(int, const char *, int))0;
callback *init = slurm_spank_init, *init_post_opt = slurm_spank_init_post_opt, *exit_ = slurm_spank_exit,
         *task_init_privileged = slurm_spank_task_init_privileged, *task_init = slurm_spank_task_init,
         *task_post_fork = slurm_spank_task_post_fork;
/* spank_err_t and spank_context_t are enumerations, which have the size of an int. */
_Static_assert(sizeof(spank_err_t) == sizeof(int) && sizeof(spank_context_t) == sizeof(int), "results");
spank_err_t (*get_item)(spank_t, spank_item_t, ...) = spank_get_item;
spank_err_t (*get_variable)(spank_t, const char *, char *, int) = spank_getenv;
spank_err_t (*set_variable)(spank_t, const char *, const char *, int) = spank_setenv;
spank_err_t (*option_register)(spank_t, struct spank_option *) = spank_option_register;
spank_context_t (*context)(void) = spank_context;
void (*error)(const char *, ...) = slurm_error;
void (*verbose)(const char *, ...) = slurm_verbose;
long (*api_version)(void) = slurm_api_version;
