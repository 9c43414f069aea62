# shellcheck shell=sh
# Tests of Prolog, Epilog and TaskProlog on the node n3, which has no plugin. scripts/cluster/slurm.sh runs
# them as those of plugin_cases.sh.

# reasons: prints why jobs were refused.
reasons() {
    scontrol show job | sed -n 's/^ *AdminComment=gcgroup: //p'
}

test_scripts_hold_a_job_to_its_shards() {
    set_scripts
    start script-shards 'error' srun -w n3 -J script-shards --gres=shard:2 "$WORK/gpu" --hold \
        "alloc linear $((200 * MIB))" "alloc linear $((100 * MIB))"
    check answers "$(answers "$WORK/out/script-shards")" "ok error 2 "
    job=slurm/job_$(job_of script-shards)
    check memory.limit "$(show "$job/memory.limit")" $((256 * MIB))
    check compute.max "$(show "$job/compute.max")" "25000 100000"
    check memory.swap.max "$(show "$job/memory.swap.max")" 0
    limits="$(show "$job/0/memory.limit") $(show "$job/1/memory.limit")"
    case $limits in
        "max 0" | "0 max") ;;
        *) check "limits of the GPUs" "$limits" "max 0" ;;
    esac
    pid=$(show "$job/step_0/gcgroup.procs")
    check "user of $pid" "$(stat -c %u "/proc/$pid")" "$USER_ID"
    # The owner of the group may tighten its limits, and not loosen them.
    if on n3 setpriv --reuid "$USER_ID" --clear-groups "$WORK/gcgroupfs" set "$job/memory.limit" 1G; then
        check "a higher limit" accepted refused
    fi
    on n3 setpriv --reuid "$USER_ID" --clear-groups "$WORK/gcgroupfs" set "$job/memory.limit" 128M
    end script-shards
}

test_scripts_take_wishes_within_the_share() {
    set_scripts highest_priority=7 swap_max=48M
    start wishes 'error' srun -w n3 -J wishes --gres=shard:4 \
        --comment="about gcgroup:memory=64M,max=20%,priority=7,swap" "$WORK/gpu" --hold \
        "alloc linear $((40 * MIB))" "alloc linear $((80 * MIB))"
    job=slurm/job_$(job_of wishes)
    for setting in "memory.limit $((64 * MIB))" "compute.max 20000 100000" "compute.priority 7" \
        "memory.swap.max $((48 * MIB))"; do
        check "${setting%% *}" "$(show "$job/${setting%% *}")" "${setting#* }"
    done
    end wishes
    until_true nothing_is_left
    # More than the share, as bytes and as percentages.
    start wishes '^ok' srun -w n3 -J wishes --gres=shard:2 --comment="gcgroup:memory=90%,max=150%" "$WORK/gpu" --hold \
        "alloc linear $((40 * MIB))"
    job=slurm/job_$(job_of wishes)
    check memory.limit "$(show "$job/memory.limit")" $((256 * MIB))
    check compute.max "$(show "$job/compute.max")" "25000 100000"
    end wishes
    until_true nothing_is_left
    # A tab would begin the period of compute.max.
    for wish in priority=6 memory=lots size=1 "max=12500	1000"; do
        if as_user srun -w n3 -J wishes --gres=shard:1 --comment="gcgroup:$wish" echo task-runs > "$WORK/out/wishes" 2>&1; then
            check "$wish" accepted refused
        fi
        lacks "$WORK/out/wishes" task-runs
        reasons > "$WORK/out/wishes"
        has "$WORK/out/wishes" "${wish#memory=}"
    done
}

test_scripts_deny_memory_to_jobs_without_gpus() {
    set_scripts
    as_user srun -w n3 --comment="gcgroup:memory=64M" "$WORK/gpu" "alloc linear $MIB" > "$WORK/out/script-without"
    check "answers without GPUs" "$(answers "$WORK/out/script-without")" "error 2 "
    as_user srun -w n3 --gres=gpu:1 "$WORK/gpu" "alloc linear $MIB" > "$WORK/out/script-without"
    check "answers with a GPU" "$(answers "$WORK/out/script-without")" "ok "
    until_true nothing_is_left
    set_scripts without_gres=allow
    as_user srun -w n3 "$WORK/gpu" "alloc linear $MIB" > "$WORK/out/script-without"
    check "answers where it is allowed" "$(answers "$WORK/out/script-without")" "ok "
}

test_scripts_ignore_a_name_that_looks_like_resources() {
    set_scripts
    line="     Nodes=n3 CPU_IDs=0 Mem=0 GRES=shard:8(IDX:0)"
    as_user srun -w n3 -J "$line" --gres=shard:2 "$WORK/gpu" "alloc linear $((300 * MIB))" > "$WORK/out/script-forged"
    check answers "$(answers "$WORK/out/script-forged")" "error 2 "
    as_user srun -w n3 --gres=shard:2 --comment "x
$line" "$WORK/gpu" "alloc linear $((300 * MIB))" > "$WORK/out/script-forged"
    check "answers with a comment" "$(answers "$WORK/out/script-forged")" "error 2 "
    if as_user srun -w n3 --gres=shard:2 -J "x
$line" "$WORK/gpu" "alloc linear $((300 * MIB))" > "$WORK/out/script-forged" 2>&1; then
        check "a name with a newline" accepted refused
    fi
    reasons > "$WORK/out/script-forged"
    has "$WORK/out/script-forged" "the job's name has a newline"
    mkdir -p "$WORK/out/x
$line"
    as_user srun -w n3 --gres=shard:2 -D "$WORK/out/x
$line" "$WORK/gpu" "alloc linear $((300 * MIB))" > "$WORK/out/script-forged"
    check "answers in a directory with a newline" "$(answers "$WORK/out/script-forged")" "error 2 "
    # Which an echo of the shell would make newlines.
    as_user srun -w n3 --gres=shard:2 -J 'x\n   UserId=0\n     Nodes=n3 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)\c' \
        "$WORK/gpu" "alloc linear $((300 * MIB))" > "$WORK/out/script-forged"
    check "answers with backslashes" "$(answers "$WORK/out/script-forged")" "error 2 "
}

test_scripts_write_back_only_an_administrators_comment() {
    set_scripts
    forged="x
   AdminComment=forged"
    mkdir -p "$WORK/out/$forged"
    # A refused job's comment is written again, with the reason.
    for before in theirs ''; do
        for name in plain "$forged"; do
            for directory in / "$WORK/out/$forged"; do
                job=$(as_user sbatch --parsable -H -w n3 -D "$directory" -J "$name" -o /dev/null --gres=shard:2 \
                    --comment="gcgroup:size=1 $forged" --wrap=true)
                scontrol update "JobId=$job" "AdminComment=$before"
                scontrol release "$job"
                until_true refused "$job"
                reason="--comment: size=1 is not memory=SIZE, max=PERCENT, priority=N (0 to 15) or swap"
                [ "$name" = plain ] || reason="the job's name has a newline"
                check "AdminComment of $name in $directory" "$(admin_comment "$job")" "${before:+$before;}gcgroup: $reason"
            done
        done
    done
}

# refused JOB
refused() {
    admin_comment "$1" | grep -q 'gcgroup: '
}

test_scripts_leave_other_jobs_without_a_controller() {
    set_scripts
    start script-other '^ok' srun -w n3 -J script-other --gres=shard:2 "$WORK/gpu" --hold "alloc linear $MIB"
    job=slurm/job_$(job_of script-other)
    pid=$(show "$job/step_0/gcgroup.procs")
    # Nothing listens there.
    sed 's/^SlurmctldPort=.*/SlurmctldPort=1/; $a MessageTimeout=2' "$SLURM_CONF" > "$WORK/no-controller.conf"
    set_scripts "export SLURM_CONF=$WORK/no-controller.conf"
    if as_user srun -w n3 -J alone --gres=shard:2 echo task-runs > "$WORK/out/script-alone" 2>&1; then
        check "a job without the controller" started refused
    fi
    lacks "$WORK/out/script-alone" task-runs
    check "members of the other job" "$(show "$job/step_0/gcgroup.procs")" "$pid"
    grep -q 'State:.S' "/proc/$pid/status" || check "state of $pid" ended running
    set_scripts
    end script-other
}

test_scripts_hold_heterogeneous_jobs() {
    set_scripts
    # Slurm puts components on different nodes. n4 has the plugin.
    for options in "--gres=shard:2 -w n3 : -w n4" "-w n4 : --gres=shard:2 -w n3"; do
        # shellcheck disable=SC2086  # words
        as_user salloc -Q $options srun --het-group=0,1 sh -c "[ \$SLURMD_NODENAME != n3 ] ||
            exec $WORK/gpu 'alloc linear $((200 * MIB))' 'alloc linear $((100 * MIB))'" > "$WORK/out/het" 2>&1 || :
        check "answers with $options" "$(answers "$WORK/out/het")" "ok error 2 "
    done
}

test_scripts_do_not_raise_the_priority_of_jobs_without_a_wish() {
    set_scripts highest_priority=10
    start unwished '^ok' srun -w n3 -J unwished --gres=shard:2 "$WORK/gpu" --hold "alloc linear $MIB"
    check compute.priority "$(show "slurm/job_$(job_of unwished)/compute.priority")" 10
    end unwished
}

test_scripts_leave_nothing_of_a_killed_job() {
    set_scripts
    rm -f "$WORK/out/usage-scripts"
    # A process that leaves its session and its parents, a group of the user, and a step.
    batch killed both "
        (setsid $WORK/gpu --hold 'alloc linear $((20 * MIB))' > $WORK/out/killed-first &)
        srun --overlap $WORK/gpu --hold 'alloc linear $((40 * MIB))' > $WORK/out/killed-second &
        until grep -q ok $WORK/out/killed-first && grep -q ok $WORK/out/killed-second; do sleep 0.1; done
        $WORK/gcgroupfs mkdir slurm/job_\$SLURM_JOB_ID/own
        $WORK/gcgroupfs mkdir slurm/job_\$SLURM_JOB_ID/own/deeper
        echo both; sleep 600" --gres=shard:2
    job=$(job_of killed)
    check members "$(show "slurm/job_$job/step_batch/gcgroup.procs" | wc -l)" 1
    check members "$(show "slurm/job_$job/step_0/gcgroup.procs" | wc -l)" 1
    # Slurm ends the step's processes by their parents; the epilog ends the others.
    end killed
    until_true nothing_is_left
    has "$WORK/out/usage-scripts" "{\"job\":$job,\"node\":\"n3\",\"gpu_seconds\":" "\"gpu_memory_peak\":$((60 * MIB))"
}

test_scripts_store_what_a_job_has_used() {
    set_scripts
    rm -f "$WORK/out/usage-scripts"
    as_user sbatch -Q -w n3 -D / -J script-used -o /dev/null --gres=shard:8 --wrap="$WORK/gpu 'alloc linear $((40 * MIB))' 'spin 200000 2' sync"
    job=$(scontrol -o show job | sed -n 's/^JobId=\([0-9]*\) JobName=script-used .*/\1/p' | tail -n 1)
    until_true grep -qs "\"job\":$job," "$WORK/out/usage-scripts"
    until_true nothing_is_left
    seconds=$(sed -n 's/.*"gpu_seconds":\([0-9]*\)\.\([0-9]\)[0-9]*,.*/\1\2/p' "$WORK/out/usage-scripts")
    [ "$seconds" -ge 2 ] || check "tenths of a GPU second" "$seconds" "2 or more"
    has "$WORK/out/usage-scripts" "\"gpu_memory_peak\":$((40 * MIB))"
}

test_scripts_store_what_a_job_has_used_in_the_accounting() {
    if ! has_accounting; then
        echo "left out: no slurmdbd"
        return
    fi
    set_scripts
    # Two tasks of an array, whose number is also that of one of them, and an administrator's comment.
    array=$(as_user sbatch --parsable -H -w n3 -D / --array=1-2 -o /dev/null --gres=shard:4 \
        --wrap="$WORK/gpu \"alloc linear \$((SLURM_ARRAY_TASK_ID * 20 * $MIB))\"")
    scontrol update "JobId=$array" AdminComment=theirs
    scontrol release "$array"
    for task in 1 2; do
        until_true in_accounting "${array}_$task" "theirs;gcgroup:n3.job:gpu_seconds=" \
            ",gpu_memory_peak=$((task * 20 * MIB))"
        check "parts of the comment" "$(grep -o gcgroup: "$WORK/out/accounting-n3" | wc -l)" 1
    done
    until_true nothing_is_left
    set_scripts accounting=no
    job=$(as_user sbatch --parsable -w n3 -D / -o /dev/null --gres=shard:4 --wrap="$WORK/gpu 'alloc linear $MIB'")
    until_true grep -qs "\"job\":$job," "$WORK/out/usage-scripts"
    until_true nothing_is_left
    in_accounting "$job"
    lacks "$WORK/out/accounting-n3" gcgroup
}

test_scripts_start_no_task_without_a_daemon() {
    set_scripts patience=1
    stop_daemon n3
    status=0
    as_user srun -w n3 --gres=shard:2 echo task-runs > "$WORK/out/script-alone" 2>&1 || status=$?
    [ "$status" != 0 ] || check status 0 "not 0"
    lacks "$WORK/out/script-alone" task-runs
    reasons > "$WORK/out/script-alone"
    has "$WORK/out/script-alone" "no daemon answers at"
    # Jobs without a GPU need no daemon, and can use no GPU.
    as_user srun -w n3 sh -c "echo task-runs; $WORK/gpu 'alloc linear $MIB' 2>&1" > "$WORK/out/script-alone" 2>&1 || :
    has "$WORK/out/script-alone" task-runs
    check "answers of the GPU" "$(answers "$WORK/out/script-alone")" "error 3 "
    case $(sinfo -h -n n3 -o %T) in
        *drain*) check "state of n3" "$(sinfo -h -n n3 -o %T)" "not drained" ;;
    esac
    start_daemon n3
}

test_scripts_remove_what_a_failed_node_has_left() {
    set_scripts
    batch node-fails '^ok' "$WORK/gpu --hold 'alloc linear $((40 * MIB))'" --gres=shard:2 --no-requeue
    job=$(job_of node-fails)
    kill_node n3
    scontrol update NodeName=n3 State=DOWN Reason=test
    until_true no_job_runs
    check "limit after the failure" "$(show "slurm/job_$job/memory.limit")" $((256 * MIB))
    until_true resume_node n3
    start_slurmd n3
    as_user srun -w n3 --gres=shard:1 true
    until_true is_gone "slurm/job_$job/memory.limit"
}

test_scripts_hold_steps_in_salloc() {
    set_scripts
    as_user salloc -Q -w n3 -J interactive --gres=shard:2 sh -c "
        srun $WORK/gpu 'alloc linear $((200 * MIB))' 'alloc linear $((100 * MIB))'
        srun $WORK/gpu 'alloc linear $((250 * MIB))'" > "$WORK/out/script-salloc" 2>&1
    check answers "$(answers "$WORK/out/script-salloc")" "ok error 2 ok "
}

test_scripts_with_a_rule_hold_programs_without_variables() {
    if ! grep -q proctrack/cgroup "$WORK/slurm-n3.conf" 2> /dev/null; then
        echo "left out: no cgroups"
        return
    fi
    set_scripts
    as_user srun -w n3 --gres=shard:2 env -u GCGROUP_REQUIRED -u GCGROUP_GROUP "$WORK/gpu" \
        "alloc linear $((200 * MIB))" "alloc linear $((100 * MIB))" > "$WORK/out/no-variables"
    check answers "$(answers "$WORK/out/no-variables")" "ok error 2 "
    # A group outside of the job's is refused, and with it all use of a GPU.
    as_user srun -w n3 --gres=shard:2 env -u GCGROUP_REQUIRED GCGROUP_GROUP=elsewhere "$WORK/gpu" \
        "alloc linear $((200 * MIB))" > "$WORK/out/no-variables" 2> /dev/null
    check "answers in another group" "$(answers "$WORK/out/no-variables")" "error 201 "
}
