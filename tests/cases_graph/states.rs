//! States that take views of themselves, of each other and of what lies beside them.

use super::device::{Named, poisoned, session};
use super::{MODES, f32};
use kiln::graph::{Builder, DType, TensorType, Unary};
use kiln::session::{CompileOptions, Mode};
use kiln::tensor::Tensor;

#[test]
fn e03_states_that_take_views_of_themselves_and_of_each_other() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32(&[3])).unwrap();
    let [ring, a, c, d, e] =
        [("ring", 9), ("a", 3), ("c", 3), ("d", 3), ("e", 3)].map(|(name, n)| b.state(name, f32(&[n])).unwrap());
    let kept = b.slice(ring, 0, 3, 6).unwrap();
    let ring_next = b.concat(&[kept, x], 0).unwrap();
    let doubled = b.add(x, x).unwrap();
    let seen = b.unary(Unary::Exp, doubled).unwrap();
    let total = b.sum(ring, &[0]).unwrap();
    b.update(ring, ring_next).unwrap();
    // a takes a value that is read after it is made, c and d change places, e takes what a was and the same value
    // goes to no other
    b.update(a, doubled).unwrap();
    b.update(c, d).unwrap();
    b.update(d, c).unwrap();
    b.update(e, a).unwrap();
    b.output("seen", seen).unwrap();
    b.output("total", total).unwrap();
    b.output("e", e).unwrap();
    let graph = b.finish().unwrap();
    for mode in MODES {
        for alias in [true, false] {
            let options = CompileOptions { alias, ..poisoned(mode) };
            let program = session.compile(&graph, &Named::new(), &options).unwrap();
            program.write_state("c", &Tensor::f32([3], &[1.0, 2.0, 3.0])).unwrap();
            program.write_state("d", &Tensor::f32([3], &[4.0, 5.0, 6.0])).unwrap();
            let mut ring = vec![0.0; 9];
            let (mut a, mut e) = (vec![0.0; 3], vec![0.0; 3]);
            let (mut c, mut d) = (vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]);
            for step in 0..4 {
                let x: Vec<f32> = (0..3).map(|i| (step * 3 + i) as f32 / 8.0).collect();
                let out = program.run(&[("x", &Tensor::f32([3], &x))]).unwrap();
                assert_eq!(out["total"].to_f32(), [ring.iter().sum::<f32>()], "{mode} step {step}");
                assert_eq!(out["e"].to_f32(), e);
                assert!((out["seen"].to_f64()[2] - f64::from(2.0 * x[2]).exp()).abs() < 1e-3);
                ring = [&ring[3..], &x].concat();
                e = a;
                a = x.iter().map(|x| 2.0 * x).collect();
                (c, d) = (d, c);
                for (name, want) in [("ring", &ring), ("a", &a), ("c", &c), ("d", &d), ("e", &e)] {
                    assert_eq!(&program.read_state(name).unwrap().to_f32(), want, "{mode} step {step}: {name}");
                }
            }
        }
    }
}

#[test]
fn e03_a_state_that_keeps_what_another_was() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2])).unwrap();
    let (h, history) = (b.state("h", f32(&[2])).unwrap(), b.state("history", f32(&[6])).unwrap());
    let old = b.slice(history, 0, 2, 4).unwrap();
    let next = b.concat(&[old, h], 0).unwrap();
    b.update(history, next).unwrap();
    let sum = b.add(h, x).unwrap();
    b.update(h, sum).unwrap();
    let graph = b.finish().unwrap();
    for mode in MODES {
        let program = session.compile(&graph, &Named::new(), &poisoned(mode)).unwrap_or_else(|e| panic!("{mode}: {e}"));
        for step in 1..=4 {
            program.run(&[("x", &Tensor::f32([2], &[1.0, 10.0]))]).unwrap();
            let was = |back: i32| [1.0, 10.0].map(|x| x * (step - back).max(0) as f32);
            let want = [was(3), was(2), was(1)].concat();
            assert_eq!(program.read_state("history").unwrap().to_f32(), want, "{mode} step {step}");
            assert_eq!(program.read_state("h").unwrap().to_f32(), was(0), "{mode} step {step}");
        }
    }
}

#[test]
fn e03_a_state_read_through_other_dimensions_is_updated_in_place() {
    let Some(session) = session() else { return };
    for dims in [&[1, 3][..], &[1, 2, 3]] {
        let n: usize = dims.iter().product();
        let mut b = Builder::new();
        let (x, s) = (b.input("x", f32(dims)).unwrap(), b.state("s", f32(dims)).unwrap());
        let flat = b.reshape(s, dims[1..].to_vec()).unwrap();
        let next = b.add(flat, x).unwrap();
        b.update(s, next).unwrap();
        let graph = b.finish().unwrap();
        let x: Vec<f32> = (1..=n).map(|i| i as f32).collect();
        for mode in MODES {
            let program = session.compile(&graph, &Named::new(), &poisoned(mode)).unwrap();
            for step in 1..=3 {
                program.run(&[("x", &Tensor::f32(dims.to_vec(), &x))]).unwrap();
                let want: Vec<f32> = x.iter().map(|x| x * step as f32).collect();
                assert_eq!(program.read_state("s").unwrap().to_f32(), want, "{mode} step {step}");
            }
        }
    }
}

#[test]
fn e03_parameters_that_runs_replace_are_read_as_they_are_now() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32(&[4, 8])).unwrap();
    let layer = |b: &mut Builder, name: &str| {
        let (w, new) =
            (b.parameter(name, f32(&[8, 8])).unwrap(), b.input(&format!("new {name}"), f32(&[8, 8])).unwrap());
        let y = b.linear(x, w, None).unwrap();
        b.update(w, new).unwrap();
        y
    };
    let (one, other) = (layer(&mut b, "one"), layer(&mut b, "other"));
    let y = b.add(one, other).unwrap();
    b.output("y", y).unwrap();
    let graph = b.finish().unwrap();
    let all = |x: f32| Tensor::f32([8, 8], &[x; 64]);
    let params = Named::from([("one".to_owned(), all(1.0)), ("other".to_owned(), all(2.0))]);
    let x = Tensor::f32([4, 8], &[1.0; 32]);
    for mode in MODES {
        let program = session.compile(&graph, &params, &poisoned(mode)).unwrap();
        for (run, want) in [24.0, 240.0, 240.0].into_iter().enumerate() {
            let inputs = [("x", &x), ("new one", &all(10.0)), ("new other", &all(20.0))];
            assert_eq!(program.run(&inputs).unwrap()["y"].to_f32(), [want; 32], "{mode} run {run}");
        }
    }
}

#[test]
fn e03_one_value_for_two_states() {
    let Some(session) = session() else { return };
    let mut b = Builder::new();
    let x = b.input("x", f32(&[5])).unwrap();
    let [s, t] = ["s", "t"].map(|name| b.state(name, f32(&[5])).unwrap());
    let next = b.relu(x).unwrap();
    b.update(s, next).unwrap();
    b.update(t, next).unwrap();
    let graph = b.finish().unwrap();
    for mode in MODES {
        let program = session.compile(&graph, &Named::new(), &poisoned(mode)).unwrap();
        program.run(&[("x", &Tensor::f32([5], &[-1.0, 1.0, 2.0, -3.0, 4.0]))]).unwrap();
        for state in ["s", "t"] {
            assert_eq!(program.read_state(state).unwrap().to_f32(), [0.0, 1.0, 2.0, 0.0, 4.0], "{mode}");
        }
    }
}

#[test]
fn e14_a_state_of_odd_bytes_is_written_and_read_exactly() {
    let Some(session) = session() else { return };
    let dtype = if session.caps().f16 { DType::F16 } else { DType::F32 };
    let ty = TensorType::new(dtype, [3]);
    let mut b = Builder::new();
    let s = b.state("s", ty.clone()).unwrap();
    let next = b.add(s, s).unwrap();
    b.update(s, next).unwrap();
    let program = session.compile(&b.finish().unwrap(), &Named::new(), &poisoned(Mode::Fused)).unwrap();
    assert_eq!(program.read_state("s").unwrap(), Tensor::zeros(ty.clone()));
    program.write_state("s", &Tensor::from_f64(ty.clone(), &[1.0, -2.0, 3.5])).unwrap();
    program.run(&[]).unwrap();
    assert_eq!(program.read_state("s").unwrap(), Tensor::from_f64(ty, &[2.0, -4.0, 7.0]));
}

#[test]
fn e03_a_part_of_a_state_takes_a_part_of_what_is_as_large_as_the_state() {
    let Some(session) = session() else { return };
    let x: Vec<f32> = (1..=8).map(|i| i as f32).collect();
    // which rows are of relu(x), and which of it; the others keep or take the rows of z
    for (first, from_first) in [(true, true), (true, false), (false, true), (false, false)] {
        for other in ["s", "z"] {
            let mut b = Builder::new();
            let (input, s) = (b.input("x", f32(&[4, 2])).unwrap(), b.state("s", f32(&[4, 2])).unwrap());
            let z = if other == "z" { b.input("z", f32(&[4, 2])).unwrap() } else { s };
            let y = b.unary(Unary::Relu, input).unwrap();
            let start = if from_first { 0 } else { 2 };
            let part = b.slice(y, 0, start, 2).unwrap();
            let kept = b.slice(z, 0, if first { 2 } else { 0 }, 2).unwrap();
            let next = b.concat(&if first { [part, kept] } else { [kept, part] }, 0).unwrap();
            b.update(s, next).unwrap();
            let graph = b.finish().unwrap();
            let made = &x[2 * start..][..4];
            let was: Vec<f32> = (0..8).map(|i| -1.0 - i as f32).collect();
            let want = if first { [made, &was[4..]].concat() } else { [&was[..4], made].concat() };
            for mode in MODES {
                let program = session.compile(&graph, &Named::new(), &poisoned(mode)).unwrap();
                program.write_state("s", &Tensor::f32([4, 2], &was)).unwrap();
                for _ in 0..2 {
                    let given = [("x", &Tensor::f32([4, 2], &x)), ("z", &Tensor::f32([4, 2], &was))];
                    let given = if other == "s" { &given[..1] } else { &given[..] };
                    program.run(given).unwrap();
                    let got = program.read_state("s").unwrap().to_f32();
                    assert_eq!(got, want, "{mode}: first {first}, start {start}, beside {other}");
                }
            }
        }
    }
}
