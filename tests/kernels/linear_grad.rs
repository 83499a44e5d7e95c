//! Gradients of linears' parameters: dW = dyᵀ · x and db in one pass, whole and in slices.

use crate::common::{BOTH, F16, F32, Named, OTHERS, Result, difference, each, f16, full, random, session};
use kiln::graph::{DType, Disposition, Graph, Op, ValueId};
use kiln::reference::evaluate;
use kiln::session::Program;
use kiln::tensor::Tensor;

/// Gradients in one graph.
#[derive(Default)]
struct Grads {
    graph: Graph,
    inputs: Named,
}

impl Grads {
    fn input(&mut self, value: Tensor) -> ValueId {
        let name = format!("x{}", self.inputs.len());
        let id = self.graph.push_input(value.ty().clone(), &name);
        self.inputs.insert(name, value);
        id.into()
    }

    fn output(&mut self, name: String, value: ValueId) {
        self.graph.push_output(name, value, Disposition::Read).unwrap();
    }

    /// The gradient of a linear of (lead…, K) to (lead…, N).
    fn linear(&mut self, dtype: DType, lead: &[usize], [k, n]: [usize; 2], bias: bool) {
        let seed = self.inputs.len() as u64;
        let x = self.input(random(dtype, &[lead, &[k]].concat(), seed));
        let dy = self.input(random(dtype, &[lead, &[n]].concat(), seed + 1));
        self.of(format!("{lead:?} {k} to {n}"), x, dy, bias);
    }

    fn of(&mut self, name: String, x: ValueId, dy: ValueId, bias: bool) {
        let node = self.graph.push(Op::LinearGrad { bias }, vec![x, dy], &name).unwrap();
        self.output(format!("{name} dw"), node.into());
        if bias {
            self.output(format!("{name} db"), ValueId { node, output: 1 });
        }
    }

    fn check(&self, tolerance: f64, setups: &[crate::common::Setup]) {
        crate::common::check(&self.graph, &Named::new(), &self.inputs, tolerance, setups);
    }
}

/// The kernels that a program launches, each once.
fn kernels(program: &Program) -> Vec<&str> {
    let mut names: Vec<&str> = program.compiled().recording.kernels.iter().map(|k| k.name()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn odd_sizes_in_one_launch() {
    let mut g = Grads::default();
    let sizes: [(&[usize], [usize; 2]); 8] = [
        (&[31], [33, 65]),
        (&[65], [257, 31]),
        (&[1], [31, 33]),
        (&[], [5, 7]),
        (&[2, 33], [1, 257]),
        (&[3, 5, 7], [65, 1]),
        (&[64], [32, 68]),
        (&[40], [12, 300]),
    ];
    for (i, (lead, widths)) in sizes.into_iter().enumerate() {
        g.linear(DType::F32, lead, widths, i != 2);
    }
    g.check(F32, &BOTH);
    each(&g.graph, &Named::new(), &g.inputs, &BOTH, |setup, program, _| {
        assert_eq!(kernels(program), [if setup.tiled { "matmul" } else { "matmul_direct" }]);
        assert_eq!(program.dispatches(), sizes.len(), "{setup}");
    });
    let mut g = Grads::default();
    g.linear(DType::F32, &[31], [33, 65], true);
    g.check(F32, &OTHERS);
}

#[test]
fn odd_sizes_in_f16() {
    if !f16() {
        return;
    }
    let mut g = Grads::default();
    for (lead, widths) in [(&[31][..], [33, 65]), (&[2, 32], [32, 68]), (&[700], [33, 31]), (&[640], [64, 32])] {
        g.linear(DType::F16, lead, widths, true);
    }
    g.check(F16, &BOTH);
}

#[test]
fn long_sums_are_made_in_slices_and_are_the_same_every_time() {
    let mut g = Grads::default();
    let sizes: [(&[usize], [usize; 2], bool); 5] = [
        (&[601], [33, 65], true),
        (&[2, 512], [64, 128], true),
        (&[4, 500], [64, 96], false),
        (&[1025], [1, 31], true),
        (&[7, 300], [65, 1], true),
    ];
    for (lead, widths, bias) in sizes {
        g.linear(DType::F32, lead, widths, bias);
    }
    g.check(F32, &BOTH);
    each(&g.graph, &Named::new(), &g.inputs, &BOTH, |setup, program, given| {
        let wanted = if setup.tiled { vec!["matmul", "sum_parts"] } else { vec!["matmul_direct"] };
        assert_eq!(kernels(program), wanted);
        assert_eq!(program.dispatches(), if setup.tiled { 2 } else { 1 } * sizes.len(), "{setup}");
        let first = program.run(given).unwrap();
        let second = program.run(given).unwrap();
        assert!(first == second, "{setup}: two runs differ");
    });
}

#[test]
fn long_sums_of_what_is_the_same_in_every_row() {
    let mut g = Grads::default();
    for (rows, n, bias) in [(302, 1, false), (302, 1, true), (601, 1, true), (1030, 1, false), (601, 3, true)] {
        let row = g.input(random(DType::F32, &[64], rows as u64));
        let x = g.graph.push(Op::Broadcast([rows, 64].into()), vec![row], "x").unwrap();
        let dy = g.input(random(DType::F32, &[rows, n], 1 + rows as u64));
        g.of(format!("x of {rows} to {n} {bias}"), x.into(), dy, bias);
    }
    for rows in [302, 601] {
        let x = g.input(random(DType::F32, &[rows, 64], rows as u64));
        let one = g.input(random(DType::F32, &[1, 1], 1 + rows as u64));
        let dy = g.graph.push(Op::Broadcast([rows, 1].into()), vec![one], "dy").unwrap();
        g.of(format!("dy of {rows}"), x, dy.into(), true);
        let row = g.input(random(DType::F32, &[64], rows as u64));
        let x = g.graph.push(Op::Broadcast([rows, 64].into()), vec![row], "x").unwrap();
        g.of(format!("both of {rows}"), x.into(), dy.into(), false);
    }
    g.check(F32, &BOTH);
}

#[test]
fn operands_that_are_views() {
    let mut g = Grads::default();
    let push = |g: &mut Grads, op: Op, x: ValueId| ValueId::from(g.graph.push(op, vec![x], "view").unwrap());
    let base = g.input(random(DType::F32, &[3, 6, 20], 1));
    let dy = g.input(random(DType::F32, &[3, 6, 12], 2));
    // rows that are neighbours, apart, and not in a row; columns that lie apart; the same row everywhere
    let cut = push(&mut g, Op::Slice { axis: 2, start: 3, len: 9 }, base);
    let inner = push(&mut g, Op::Slice { axis: 1, start: 1, len: 4 }, base);
    let turned = push(&mut g, Op::Permute(vec![1, 0, 2]), dy);
    let across = push(&mut g, Op::Permute(vec![0, 2, 1]), base);
    let one = g.input(random(DType::F32, &[1, 1, 8], 3));
    let wide = push(&mut g, Op::Broadcast([3, 6, 8].into()), one);
    let dy_inner = push(&mut g, Op::Slice { axis: 1, start: 2, len: 4 }, dy);
    g.of("cut".into(), cut, dy, true);
    g.of("inner".into(), inner, dy_inner, true);
    let base_turned = push(&mut g, Op::Permute(vec![1, 0, 2]), base);
    g.of("turned".into(), base_turned, turned, true);
    let dy_across = g.input(random(DType::F32, &[3, 20, 4], 4));
    g.of("across".into(), dy_across, across, true);
    g.of("one row".into(), dy, wide, true);
    g.of("with itself".into(), dy, dy, true);
    g.check(F32, &BOTH);
}

#[test]
fn what_is_not_read_is_not_made() -> Result {
    let mut g = Grads::default();
    let (x, dy) = (g.input(random(DType::F32, &[40, 6], 1)), g.input(random(DType::F32, &[40, 9], 2)));
    let bias_alone = g.graph.push(Op::LinearGrad { bias: true }, vec![x, dy], "bias alone")?;
    g.output("db".into(), ValueId { node: bias_alone, output: 1 });
    g.check(F32, &BOTH);
    each(&g.graph, &Named::new(), &g.inputs, &BOTH, |_, program, _| assert_eq!(kernels(program), ["reduce"]));
    let mut g = Grads::default();
    let (x, dy) = (g.input(random(DType::F32, &[40, 6], 1)), g.input(random(DType::F32, &[40, 9], 2)));
    let weight_alone = g.graph.push(Op::LinearGrad { bias: true }, vec![x, dy], "weight alone")?;
    g.output("dw".into(), weight_alone.into());
    g.check(F32, &BOTH);
    each(&g.graph, &Named::new(), &g.inputs, &BOTH, |_, program, _| {
        assert!(program.compiled().selected.steps.iter().all(|s| s.launch.operands.len() == 3));
    });
    Ok(())
}

#[test]
fn empty_sizes() {
    let mut g = Grads::default();
    for (lead, k, n) in [(&[0][..], 3, 5), (&[2, 0], 4, 1), (&[6], 0, 5), (&[6], 3, 0), (&[0], 0, 2), (&[], 0, 3)] {
        let (x, dy) = (full(DType::F32, &[lead, &[k]].concat(), 0.5), full(DType::F32, &[lead, &[n]].concat(), -0.25));
        let (x, dy) = (g.input(x), g.input(dy));
        g.of(format!("{lead:?} {k} to {n}"), x, dy, true);
    }
    g.check(F32, &[BOTH, OTHERS].concat());
}

#[test]
fn operands_over_the_binding_limit_are_read_in_slices() -> Result {
    let Some(session) = session() else { return Ok(()) };
    let mut g = Grads::default();
    // x and dy of 84 and 78 KiB; then a result of 114 KiB whose rows are cut
    g.linear(DType::F32, &[300], [70, 65], true);
    g.linear(DType::F32, &[2, 150], [150, 190], true);
    let given: Vec<_> = g.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let want = evaluate(&g.graph, &Named::new(), &g.inputs)?;
    for setup in BOTH {
        let mut options = setup.options(session);
        options.limits.as_mut().expect("setups set limits").max_binding_bytes = 64 << 10;
        let program = session.compile(&g.graph, &Named::new(), &options)?;
        assert!(kernels(&program).contains(&"sum_parts"), "{setup}");
        let outputs = program.run(&given)?;
        for (name, want) in &want {
            difference(&outputs[name], want, F32).map_err(|e| format!("{name} ({setup}): {e}"))?;
        }
    }
    Ok(())
}
