/* Refusal of system calls, as a seccomp(2) filter of a container does. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>

/* Refuses from now on what the environment variable REFUSE names, with EPERM: numbers of system calls, each
 * followed by a colon, and then INDEX=VALUE if only calls with that argument are meant. Returns 0 on failure. */
static inline int refuse(void)
{
    enum { MOST = 32 };
    struct sock_filter code[MOST];
    unsigned short used = 0;
    long numbers[8], index = -1;
    unsigned count = 0, value = 0;
    char *text = getenv("REFUSE");
    if (!text)
        return 1;
    while (*text) {
        char *end;
        long number = strtol(text, &end, 10);
        if (*end == '=') {
            index = number;
            value = (unsigned)strtoul(end + 1, NULL, 10);
            break;
        }
        if (*end != ':' || count == 8)
            return 0;
        numbers[count++] = number;
        text = end + 1;
    }
    code[used++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < count; i++) /* To what follows the next statement after the list. */
        code[used++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)numbers[i], (uint8_t)(count - i), 0);
    code[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    if (index >= 0) {
        code[used++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(offsetof(struct seccomp_data, args) + 8 * (size_t)index));
        code[used++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
        code[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    struct sock_fprog program = { .len = used, .filter = code };
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
