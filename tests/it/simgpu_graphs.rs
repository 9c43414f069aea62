//! Tests graphs of the simulated driver: conditional nodes and nodes of stream memory operations.

use crate::simgpu::{Machine, Program};

/// Starts a program with a word of page-locked memory, and a graph with a condition whose body decrements the
/// word.
fn with_condition(kind: u32, default: u32, size: u32) -> Program {
    let mut program = Machine::new().started();
    program.run(&format!(
        "count_down, fill = kernel('gcgroup_condition'), kernel('gcgroup_fill')
         memory = got(c_uint64, 'cuMemAllocHost_v2', 4096)
         words = (c_uint * 1024).from_address(memory)
         _ = ctypes.memset(memory, 0, 4096)
         graph = graph_of()
         handle = got(c_uint64, 'cuGraphConditionalHandleCreate', graph, context, {default}, 1)
         node = ConditionalNode(type=13, handle=handle, kind={kind}, size={size}, context=context)
         conditional = got(c_uint64, 'cuGraphAddNode_v2', graph, None, None, 0, node)
         bodies = [node.graphs[i] for i in range({size})]"
    ));
    program
}

/// Adds to body `index` a kernel that writes word `index + 1`.
fn add_fill(program: &mut Program, index: u32) {
    program.run(&format!(
        "_ = got(c_uint64, 'cuGraphAddKernelNode', bodies[{index}], None, 0, kernel_node(fill, memory + 4 * {index} + 4, 1, 7))"
    ));
}

#[test]
fn while_node_runs_until_its_condition_is_zero() {
    let mut program = with_condition(1, 1, 1);
    program.run(
        "_ = got(c_uint64, 'cuGraphAddKernelNode', bodies[0], None, 0, kernel_node(count_down, handle, memory))
         words[0] = 5
         executable = run_graph(graph)",
    );
    assert_eq!(program.ask("words[0]"), "0");
    // Each launch begins with the default value again.
    program.run("words[0] = 3\nok(cu.cuGraphLaunch(executable, 0))\nok(cu.cuCtxSynchronize())");
    assert_eq!(program.ask("words[0]"), "0");
}

#[test]
fn condition_selects_one_of_two_graphs() {
    for (default, expected) in [(0, "[0, 7]"), (1, "[7, 0]"), (9, "[7, 0]")] {
        let mut program = with_condition(0, default, 2);
        (0..2).for_each(|index| add_fill(&mut program, index));
        program.run("_ = run_graph(graph)");
        assert_eq!(program.ask("[words[1], words[2]]"), expected, "{default}");
    }
}

#[test]
fn switch_node_runs_graph_of_its_number_or_none() {
    for (default, expected) in [(0, "[7, 0, 0]"), (2, "[0, 0, 7]"), (3, "[0, 0, 0]")] {
        let mut program = with_condition(2, default, 3);
        (0..3).for_each(|index| add_fill(&mut program, index));
        program.run("_ = run_graph(graph)");
        assert_eq!(program.ask("words[1:4]"), expected, "{default}");
    }
}

#[test]
fn graph_with_condition_is_checked_and_not_cloned() {
    let mut program = with_condition(1, 0, 1);
    assert_eq!(program.ask("got(c_uint64, 'cuGraphClone', graph)"), "'error 801'");
    program.run("kind = c_uint()");
    program.calls(0, "cu.cuGraphNodeGetType(conditional, kind)");
    assert_eq!(program.ask("kind.value"), "13");
    for (kind, size, error) in [(0, 3, 1), (1, 2, 1), (2, 0, 1), (7, 1, 1)] {
        program.run(&format!(
            "node = ConditionalNode(type=13, handle=handle, kind={kind}, size={size})"
        ));
        assert_eq!(
            program.ask("got(c_uint64, 'cuGraphAddNode_v2', graph, None, None, 0, node)"),
            format!("'error {error}'"),
            "kind {kind} size {size}"
        );
    }
    program.run("node = ConditionalNode(type=13, handle=1, kind=0, size=1)");
    assert_eq!(
        program.ask("got(c_uint64, 'cuGraphAddNode_v2', graph, None, None, 0, node)"),
        "'error 1'"
    );
}

#[test]
fn memory_operations_node_executes_in_order() {
    let mut program = Machine::new().started();
    program.run(
        "memory = got(c_uint64, 'cuMemAllocHost_v2', 4096)
         words = (c_uint * 1024).from_address(memory)
         _ = ctypes.memset(memory, 0, 4096)
         graph, list = graph_of(), mem_ops((2, memory, 5), (1, memory, 5, 1), (5, memory + 8, 1 << 40), (6,))
         params = BatchNode(context, 4, ctypes.addressof(list))
         node = got(c_uint64, 'cuGraphAddBatchMemOpNode', graph, None, 0, params)
         executable = run_graph(graph)",
    );
    assert_eq!(program.ask("words[0:4]"), "[5, 0, 0, 256]");
    program.run("kind, back = c_uint(), BatchNode()");
    program.calls(
        0,
        "cu.cuGraphNodeGetType(node, kind)\ncu.cuGraphBatchMemOpNodeGetParams(node, back)",
    );
    assert_eq!(program.ask("(kind.value, back.count)"), "(12, 4)");
    program.run("other = mem_ops((2, memory, 9))\nparams = BatchNode(context, 1, ctypes.addressof(other))");
    program.calls(
        0,
        "cu.cuGraphExecBatchMemOpNodeSetParams(executable, node, params)
         cu.cuGraphLaunch(executable, 0)
         cu.cuCtxSynchronize()",
    );
    assert_eq!(program.ask("words[0]"), "9");
    // One invalid operation makes the whole batch fail.
    program.run("bad = mem_ops((2, memory, 1), (99, memory, 1))");
    program.calls(
        1,
        "cu.cuStreamBatchMemOp_v2(0, 2, bad, 0)\ncu.cuStreamBatchMemOp_v2(0, 1, other, 1)",
    );
    assert_eq!(program.ask("words[0]"), "9");
    program.calls(0, "cu.cuStreamBatchMemOp_v2(0, 1, other, 0)");
}

#[test]
fn node_parameters_can_change_but_not_its_kind() {
    let mut program = Machine::new().started();
    program.run(
        "fill = kernel('gcgroup_fill')
         at = alloc(4096)
         graph = graph_of()
         node = got(c_uint64, 'cuGraphAddKernelNode', graph, None, 0, kernel_node(fill, at, 1, 7))
         empty = got(c_uint64, 'cuGraphAddEmptyNode', graph, None, 0)
         events = [got(c_uint64, 'cuEventCreate', 0) for _ in range(2)]
         record = got(c_uint64, 'cuGraphAddEventRecordNode', graph, None, 0, events[0])",
    );
    program.calls(
        0,
        "cu.cuGraphKernelNodeSetParams(node, kernel_node(fill, at, 1, 8))",
    );
    program.calls(
        1,
        "cu.cuGraphKernelNodeSetParams(empty, kernel_node(fill, at, 1, 8))",
    );
    program.run("event = c_uint64()");
    program.calls(
        0,
        "cu.cuGraphEventRecordNodeSetEvent(record, events[1])
         cu.cuGraphEventRecordNodeGetEvent(record, event)",
    );
    assert_eq!(program.ask("event.value == events[1]"), "True");
    program.calls(1, "cu.cuGraphEventWaitNodeGetEvent(record, event)");
    program.run("executable = run_graph(graph)");
    assert_eq!(program.ask("look(at, 4)"), "b'\\x08\\x00\\x00\\x00'");
}
