# shellcheck shell=sh
# Two contending jobs on the node n4, compared with those of gcgroupfs run by
# scripts/cluster/common/conformance.py.

# with_gpu COMMAND...: runs a command with the simulated GPUs.
with_gpu() {
    env LD_LIBRARY_PATH="$WORK/lib" SIMGPU_DIR="$WORK/gpus" SIMGPU_DEVICES=2 SIMGPU_MEMORY=1G \
        SIMGPU_CONTEXT_MEMORY=0 "$@"
}

# conformance_job start|group|end JOB: what conformance.py calls.
conformance_job() {
    name=conformance-$2
    case $1 in
        start)
            swap=
            [ "$JOB_SWAP" = no ] || swap=--gpu-swap
            (
                # The caller waits for the end of its pipe.
                exec > "$WORK/out/$name" 2>&1
                with_gpu setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups \
                    srun -w n4 -D / -J "$name" --gpu-memory="$JOB_MEMORY" --gpu-max="$JOB_MAX%" \
                    --gpu-priority="$JOB_PRIORITY" $swap sh -c "$JOB_COMMAND"
            ) &
            ;;
        group)
            job=$(job_of "$name")
            [ -z "$job" ] || [ "$(squeue -h -j "$job" -o %T)" != RUNNING ] || echo "slurm/job_$job/step_0"
            ;;
        end) end "$name" ;;
    esac
}

test_jobs_are_held_as_under_gcgroupfs_run() {
    holder=$(cat "$WORK/holder-n4")
    : > "$WORK/out/conformance-a"
    "${repo:?}/scripts/cluster/common/conformance.py" --daemon "$(cat "$WORK/daemon-n4")" --unit $((128 * MIB)) \
        --load "$WORK/gcgroup-load" --gcgroupfs "nsenter --mount=/proc/$holder/ns/mnt -- env LD_LIBRARY_PATH=$WORK/lib
            SIMGPU_DIR=$WORK/gpus SIMGPU_DEVICES=2 SIMGPU_MEMORY=1G SIMGPU_CONTEXT_MEMORY=0 $DIST/bin/gcgroupfs" \
        -- "$repo/scripts/cluster/slurm.sh" --call conformance_job ||
        { cat "$WORK/out/conformance-a" "$WORK/out/conformance-b"; exit 1; }
}
