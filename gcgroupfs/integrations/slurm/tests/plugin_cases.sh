# shellcheck shell=sh
# Tests of the Slurm plugin. scripts/cluster/slurm.sh runs each function test_NAME in a cluster of the nodes
# n1 and n2, which have the plugin, and nothing_is_left_soon after each. "error 2" is the driver's answer to
# an allocation without memory.

test_options_hold_for_the_step_whatever_its_environment() {
    start options 'error' env GCGROUP_GROUP=elsewhere GCGROUP_SOCKET=/nowhere GCGROUP_REQUIRED=0 LD_PRELOAD= \
        srun -w n1 -J options --gpu-memory=64M,32M:1 --gpu-max=50% --gpu-priority=9 \
        "$WORK/gpu" --hold "alloc linear $((40 * MIB))" "alloc linear $((80 * MIB))"
    check answers "$(answers "$WORK/out/options")" "ok error 2 "
    step=slurm/job_$(job_of options)/step_0
    check memory.limit "$(show "$step/memory.limit")" $((64 * MIB))
    check 1/memory.limit "$(show "$step/1/memory.limit")" $((32 * MIB))
    check compute.max "$(show "$step/compute.max")" "50000 100000"
    check compute.priority "$(show "$step/compute.priority")" 9
    pid=$(show "$step/gcgroup.procs")
    check "user of $pid" "$(stat -c %u "/proc/$pid")" "$USER_ID"
    end options
}

test_swap_lets_memory_over_the_limit_move_to_the_host() {
    start swap '^ok 1' srun -w n1 -J swap --gpu-memory=64M --gpu-swap "$WORK/gpu" --hold \
        "alloc linear $((40 * MIB))" "alloc linear $((40 * MIB))"
    step=slurm/job_$(job_of swap)/step_0
    until_true shows "$step/memory.swap.current" $((40 * MIB))
    check memory.current "$(show "$step/memory.current")" $((40 * MIB))
    end swap
}

test_swap_is_bounded_by_the_administrator() {
    plug required swap-max=48M
    start bounded error srun -w n1 -J bounded --gpu-memory=64M --gpu-swap "$WORK/gpu" --hold \
        "alloc linear $((40 * MIB))" "alloc linear $((40 * MIB))" "alloc linear $((40 * MIB))"
    check answers "$(answers "$WORK/out/bounded")" "ok ok error 2 "
    job=slurm/job_$(job_of bounded)
    for group in "$job" "$job/step_0"; do
        check "$group/memory.swap.max" "$(show "$group/memory.swap.max")" $((48 * MIB))
    done
    end bounded
    plug required swap-max=0
    if as_user srun -w n1 --gpu-swap true 2> "$WORK/out/bounded"; then
        check --gpu-swap accepted refused
    fi
    has "$WORK/out/bounded" "--gpu-swap: swapping of GPU memory is not allowed here"
    use_plugin
}

test_job_without_gpus_may_be_denied_memory() {
    plug required without-gres=deny
    as_user srun -w n1 --gpu-memory=64M "$WORK/gpu" "alloc linear $MIB" > "$WORK/out/without"
    check "answers without GPUs" "$(answers "$WORK/out/without")" "error 2 "
    as_user srun -w n1 --gres=gpu:1 --gpu-memory=64M "$WORK/gpu" "alloc linear $MIB" > "$WORK/out/without"
    check "answers with a GPU" "$(answers "$WORK/out/without")" "ok "
    use_plugin
}

test_steps_in_salloc_are_governed() {
    as_user salloc -Q -w n1 -J interactive --gres=shard:2 srun "$WORK/gpu" "alloc linear $((200 * MIB))" \
        "alloc linear $((100 * MIB))" > "$WORK/out/salloc" 2>&1
    check "answers with shards" "$(answers "$WORK/out/salloc")" "ok error 2 "
    # Options of salloc are those of each step that has none.
    as_user salloc -Q -w n1 --gpu-memory=64M sh -c "
        srun $WORK/gpu 'alloc linear $((80 * MIB))'
        srun --gpu-memory=96M $WORK/gpu 'alloc linear $((80 * MIB))'" > "$WORK/out/salloc" 2>&1
    check "answers with an option" "$(answers "$WORK/out/salloc")" "error 2 ok "
}

test_limit_of_each_gpu_holds() {
    as_user srun -w n1 --gpu-memory=64M:0,32M:1 "$WORK/gpu" "alloc linear $((40 * MIB))" "gpu 1" \
        "alloc linear $((40 * MIB))" "alloc linear $((20 * MIB))" > "$WORK/out/gpus"
    check answers "$(answers "$WORK/out/gpus")" "ok ok error 2 ok "
}

test_invalid_option_is_refused_at_submission() {
    for option in --gpu-memory=lots --gpu-memory=8G:x --gpu-priority=16 --gpu-priority=7 --gpu-max=50; do
        if as_user srun -w n1 "$option" true 2> "$WORK/out/invalid"; then
            check "$option" accepted refused
        fi
        has "$WORK/out/invalid" "gcgroup: ${option%%=*}"
    done
    if as_user srun -w n1 --gpu-memory=8M:5 true 2> "$WORK/out/invalid"; then
        check "GPU 5" accepted refused
    fi
    has "$WORK/out/invalid" "there is no GPU 5 on this node"
}

test_name_of_a_job_does_not_change_its_shards() {
    as_user srun -w n1 -J 'x Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:8(IDX:0)' --gres=shard:2 "$WORK/gpu" \
        "alloc linear $((200 * MIB))" "alloc linear $((100 * MIB))" > "$WORK/out/forged"
    check answers "$(answers "$WORK/out/forged")" "ok error 2 "
}

test_shards_are_limits_of_memory_and_time() {
    start shards 'error' srun -w n1 -J shards --gres=shard:2 "$WORK/gpu" --hold \
        "alloc linear $((200 * MIB))" "alloc linear $((100 * MIB))"
    check answers "$(answers "$WORK/out/shards")" "ok error 2 "
    job=slurm/job_$(job_of shards)
    for group in "$job" "$job/step_0"; do
        check "$group/memory.limit" "$(show "$group/memory.limit")" $((256 * MIB))
        check "$group/compute.max" "$(show "$group/compute.max")" "25000 100000"
    done
    # The shards are on one GPU, and the job has nothing on the other.
    limits="$(show "$job/0/memory.limit") $(show "$job/1/memory.limit")"
    case $limits in
        "max 0" | "0 max") ;;
        *) check "limits of the GPUs" "$limits" "max 0" ;;
    esac
    end shards
}

test_options_win_over_shards_unless_bound() {
    as_user srun -w n1 --gres=shard:2 --gpu-memory=512M "$WORK/gpu" "alloc linear $((400 * MIB))" > "$WORK/out/win"
    check answers "$(answers "$WORK/out/win")" "ok "
    plug required shares=bound
    as_user srun -w n1 --gres=shard:2 --gpu-memory=512M "$WORK/gpu" "alloc linear $((400 * MIB))" > "$WORK/out/win"
    check "answers within the bound" "$(answers "$WORK/out/win")" "error 2 "
    plug required shares=no
    as_user srun -w n1 --gres=shard:2 "$WORK/gpu" "alloc linear $((400 * MIB))" > "$WORK/out/win"
    check "answers without shares" "$(answers "$WORK/out/win")" "ok "
    use_plugin
}

test_overlapping_steps_share_the_limit_of_their_job() {
    batch overlap both "
        srun --overlap --gres=shard:2 $WORK/gpu --hold 'alloc linear $((200 * MIB))' > $WORK/out/first &
        until grep -q ok $WORK/out/first; do sleep 0.1; done
        srun --overlap --gres=shard:2 $WORK/gpu 'alloc linear $((100 * MIB))' 'alloc linear $((40 * MIB))' > $WORK/out/second
        echo both; sleep 600" --gres=shard:2
    check answers "$(answers "$WORK/out/second")" "error 2 ok "
    end overlap
}

test_steps_with_fewer_shards_have_smaller_limits() {
    batch fewer both "
        for shards in 1 2; do
            srun --gres=shard:\$shards $WORK/gpu 'alloc linear $((200 * MIB))' > $WORK/out/fewer-\$shards
        done
        echo both" --gres=shard:4
    check "answers of 1 shard" "$(answers "$WORK/out/fewer-1")" "error 2 "
    check "answers of 2 shards" "$(answers "$WORK/out/fewer-2")" "ok "
}

test_limit_of_sbatch_bounds_all_steps_together() {
    batch whole both "
        srun --overlap $WORK/gpu --hold 'alloc linear $((40 * MIB))' > $WORK/out/whole-first &
        until grep -q ok $WORK/out/whole-first; do sleep 0.1; done
        srun --overlap $WORK/gpu 'alloc linear $((40 * MIB))' 'alloc linear $((20 * MIB))' > $WORK/out/whole-second
        echo both; sleep 600" --gpu-memory=64M
    job=slurm/job_$(job_of whole)
    check memory.limit "$(show "$job/memory.limit")" $((64 * MIB))
    check "limit of the script" "$(show "$job/step_batch/memory.limit")" $((64 * MIB))
    check answers "$(answers "$WORK/out/whole-second")" "error 2 ok "
    end whole
}

test_tasks_of_an_array_have_groups_of_their_own() {
    batch array '^ok' "$WORK/gpu --hold 'alloc linear $((40 * MIB))'" --gpu-memory=64M --array=1-2
    until_true sh -c "[ \$(grep -c '^ok' $WORK/out/array) = 2 ]"
    check tasks "$(job_of array | wc -l)" 2
    for job in $(job_of array); do
        check "members of $job" "$(show "slurm/job_$job/step_batch/gcgroup.procs" | wc -l)" 1
        check memory.limit "$(show "slurm/job_$job/memory.limit")" $((64 * MIB))
    done
    end array
}

test_several_tasks_share_the_group_of_their_step() {
    start tasks 'error' srun -w n1 -J tasks -n 3 --gpu-memory=64M "$WORK/gpu" --hold "alloc linear $((30 * MIB))"
    until_true sh -c "[ \$(grep -cE '^(ok|error)' $WORK/out/tasks) = 3 ]"
    check allocations "$(grep -c '^ok' "$WORK/out/tasks")" 2
    step=slurm/job_$(job_of tasks)/step_0
    check members "$(show "$step/gcgroup.procs" | wc -l)" 3
    end tasks
}

test_processes_cannot_leave_the_group() {
    # Without its variables, except the library, and without living ancestors in the step.
    start leave 'error' srun -w n1 -J leave --gpu-memory=64M sh -c "
        env -u GCGROUP_GROUP -u GCGROUP_REQUIRED -u GCGROUP_SOCKET $WORK/gpu 'alloc linear $((80 * MIB))'
        (setsid sh -c 'sleep 0.5; $WORK/gpu --hold \"alloc linear $((80 * MIB))\"' &)
        sleep 600"
    until_true sh -c "[ \$(grep -c '^error 2' $WORK/out/leave) = 2 ]"
    end leave
}

test_step_fails_without_a_daemon() {
    stop_daemon n1
    # Jobs without a GPU need no daemon.
    as_user srun -w n1 echo task-runs > "$WORK/out/other" 2>&1 &
    other=$!
    status=0
    as_user srun -w n1 --gpu-memory=64M echo task-runs > "$WORK/out/alone" 2>&1 || status=$?
    [ "$status" != 0 ] || check status 0 "not 0"
    has "$WORK/out/alone" "the step is not started without a group for its GPU work: no daemon at"
    lacks "$WORK/out/alone" task-runs
    wait "$other"
    has "$WORK/out/other" task-runs
    plug required best-effort=yes
    as_user srun -w n1 --gpu-memory=64M echo task-runs > "$WORK/out/alone" 2>&1
    has "$WORK/out/alone" task-runs "warning: the step has no group"
    use_plugin
    start_daemon n1
}

test_full_step_gets_nothing_more_while_no_daemon_runs() {
    # Each new program is refused by cuInit (802), with the variables of the step and without them.
    start away '^error 2' srun -w n1 -J away --gpu-memory=64M sh -c "
        $WORK/gpu --hold 'alloc linear $((40 * MIB))' 'alloc linear $((40 * MIB))' &
        while ! [ -e $WORK/out/killed ]; do sleep 0.1; done
        $WORK/gpu 'alloc linear $MIB'
        env -u GCGROUP_GROUP -u GCGROUP_REQUIRED -u GCGROUP_SOCKET $WORK/gpu 'alloc linear $MIB'
        wait"
    stop_daemon n1
    : > "$WORK/out/killed"
    until_true sh -c "[ \$(grep -c '^ready .* 802' $WORK/out/away) = 2 ]"
    # A further step, which asks for no GPU.
    as_user srun -w n1 --overlap "--jobid=$(job_of away)" "$WORK/gpu" "alloc linear $MIB" > "$WORK/out/more" 2>&1
    grep -q '^ready .* 802' "$WORK/out/more" || check "another step" "$(cat "$WORK/out/more")" "ready PID 802"
    start_daemon n1
    check "allocations" "$(grep -c '^ok' "$WORK/out/away")" 1
    until_true shows "slurm/job_$(job_of away)/memory.current" $((40 * MIB))
    end away
}

test_limit_outlives_daemon_and_slurmd() {
    start outlive '^ok' srun -w n1 -J outlive --gpu-memory=64M sh -c "$WORK/gpu 'alloc linear 1000'
        while ! [ -e $WORK/out/restarted ]; do sleep 0.1; done
        $WORK/gpu --hold 'alloc linear $((80 * MIB))'"
    stop_daemon n1
    start_daemon n1
    kill -9 "$(cat "$WORK/slurmd-n1")"
    start_slurmd n1
    : > "$WORK/out/restarted"
    until_true grep -q '^error 2' "$WORK/out/outlive"
    job=slurm/job_$(job_of outlive)
    check memory.limit "$(show "$job/step_0/memory.limit")" $((64 * MIB))
    end outlive
}

test_suspended_job_is_frozen() {
    batch suspend '^ok' "$WORK/gpu --hold 'alloc linear 1000'" --gpu-memory=64M
    job=$(job_of suspend)
    step=slurm/job_$job/step_batch
    scontrol suspend "$job"
    until_true shows "$step/compute.freeze" 1
    check state "$(squeue -h -j "$job" -o %T)" SUSPENDED
    scontrol resume "$job"
    until_true shows "$step/compute.freeze" 0
    # An administrator's freeze stays.
    on n1 "$WORK/gcgroupfs" set "$step/compute.freeze" 1
    scontrol suspend "$job"
    pid=$(show "$step/gcgroup.procs")
    until_true grep -q 'State:.T' "/proc/$pid/status"
    scontrol resume "$job"
    until_true grep -q 'State:.S' "/proc/$pid/status"
    check compute.freeze "$(show "$step/compute.freeze")" 1
    end suspend
}

test_memory_of_a_suspended_job_moves_to_the_host() {
    plug required suspend=reclaim
    batch moved '^ok' "$WORK/gpu --hold 'alloc linear $((40 * MIB))'" --gpu-memory=64M --gpu-swap
    use_plugin
    job=$(job_of moved)
    step=slurm/job_$job/step_batch
    scontrol suspend "$job"
    until_true shows "$step/memory.swap.current" $((40 * MIB))
    pid=$(show "$step/gcgroup.procs")
    until_true grep -q 'State:.T' "/proc/$pid/status"
    check compute.freeze "$(show "$step/compute.freeze")" 1
    scontrol resume "$job"
    until_true shows "$step/memory.current" $((40 * MIB))
    grep -q 'State:.S' "/proc/$pid/status" || check "state of $pid" stopped running
    end moved
}

test_requeued_job_begins_anew() {
    batch again '^ok' "$WORK/gpu --hold 'alloc linear $((40 * MIB))'" --gpu-memory=64M --requeue
    job=$(job_of again)
    before=$(show "slurm/job_$job/step_batch/gcgroup.procs")
    scontrol requeue "$job"
    until_true is_pending "$job"
    # slurmd refuses what was submitted in the second in which it ended the job.
    sleep 2
    scontrol update "JobId=$job" StartTime=now
    until_true has_begun_again
    after=$(show "slurm/job_$job/step_batch/gcgroup.procs")
    [ "$before" != "$after" ] || check process "$after" "another one"
    check memory.limit "$(show "slurm/job_$job/memory.limit")" $((64 * MIB))
    end again
}

# is_pending JOB
is_pending() {
    job_is "$1" PENDING
}

# job_is JOB STATE
job_is() {
    [ "$(squeue -h -t all -j "$1" -o %T)" = "$2" ]
}

has_begun_again() {
    [ "$(grep -c '^ok' "$WORK/out/again")" = 2 ]
}

test_failed_node_leaves_nothing_behind() {
    batch fails '^ok' "$WORK/gpu --hold 'alloc linear $((40 * MIB))'" --gpu-memory=64M --no-requeue
    kill_node n1
    scontrol update NodeName=n1 State=DOWN Reason=test
    until_true no_job_runs
    until_true node_has_no_group
    until_true resume_node n1
    start_slurmd n1
}

# resume_node NODE: returns a node to service, unless the controller has done so: that is no valid transition.
resume_node() {
    scontrol update NodeName="$1" State=RESUME 2> /dev/null || ! sinfo -h -N -n "$1" -o %T | grep -qE 'down|drain'
}

node_has_no_group() {
    ! on n1 "$WORK/gcgroupfs" ls --json | grep -qF '"slurm/'
}

test_use_is_stored_with_the_job() {
    rm -f "$WORK/out/usage"
    # A user's text that looks like a line of the controller.
    forged="$WORK/out/x
   AdminComment=forged"
    mkdir -p "$forged"
    batch used '^ready' "$WORK/gpu 'alloc linear $((40 * MIB))' 'spin 200000 2' sync; sleep 1; srun --overlap $WORK/gpu 'alloc linear $((20 * MIB))'" \
        --gpu-memory=64M --gpu-max=90% -D "$forged"
    job=$(squeue -h -t all -n used -o %A | sort -n | tail -n 1)
    until_true job_is "$job" COMPLETED
    admin_comment "$job" > "$WORK/out/comment"
    set -- "gcgroup:n1.0:gpu_seconds=" "gcgroup:n1.batch:gpu_seconds=" "gpu_memory_peak=$((40 * MIB))" \
        "gpu_memory_peak=$((20 * MIB))"
    has "$WORK/out/comment" "$@"
    lacks "$WORK/out/comment" forged
    ! has_accounting || until_true in_accounting "$job" "$@"
    has "$WORK/out/usage" "{\"job\":$job,\"step\":\"batch\",\"node\":\"n1\",\"gpu_seconds\":"
    seconds=$(sed -n 's/.*"step":"batch".*"gpu_seconds":\([0-9]*\)\.\([0-9]\)[0-9]*,.*/\1\2/p' "$WORK/out/usage")
    # Two kernels of 0.2 s, of which a measurement may miss the ends.
    [ "$seconds" -ge 2 ] || check "tenths of a GPU second" "$seconds" "2 or more"
}

test_each_node_has_a_group_for_the_step() {
    start nodes 'error' srun -N 2 -n 2 -J nodes --gres=shard:2 "$WORK/gpu" --hold \
        "alloc linear $((200 * MIB))" "alloc linear $((100 * MIB))"
    until_true sh -c "[ \$(grep -c '^error 2' $WORK/out/nodes) = 2 ]"
    job=$(job_of nodes)
    for node in n1 n2; do
        group=slurm/job_$job/step_0
        check "members on $node" "$(on $node "$WORK/gcgroupfs" get "$group/gcgroup.procs" | wc -l)" 1
        check "limit on $node" "$(on $node "$WORK/gcgroupfs" get "$group/memory.limit")" $((256 * MIB))
    done
    end nodes
}

test_cancelled_step_leaves_its_job_running() {
    batch cancel 'ok' "srun --overlap $WORK/gpu --hold 'alloc linear 1000' & wait; echo over; sleep 600" --gpu-memory=64M
    job=$(job_of cancel)
    scancel "$job.0"
    until_true grep -q over "$WORK/out/cancel"
    until_true is_gone "slurm/job_$job/step_0/memory.limit"
    check memory.limit "$(show "slurm/job_$job/memory.limit")" $((64 * MIB))
    end cancel
}

test_other_release_of_slurm_is_refused() {
    # A libslurm that says it is that of 25.05.
    if as_user env LD_PRELOAD="$WORK/libslurm-43.so" srun -w n1 true 2> "$WORK/out/release"; then
        check "release 25.05" accepted refused
    fi
    has "$WORK/out/release" "gcgroup: this plugin serves Slurm 22.05, 24.11, 26.05, not the one with libslurm.so.43" \
        "Incompatible plugin version"
}
