//! Tensors that stay on the device: what copying one costs, whose bytes it is, and what a wrong call is told.

mod device;

use device::{Counts, Named, fill, fill_as, own_session, poisoned, session};
use kiln::graph::{Builder, DType, Graph, TensorType};
use kiln::session::{CompileOptions, DeviceTensor, Mode, Session};
use kiln::tensor::Tensor;

fn f32(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

const MODES: [Mode; 3] = [Mode::Eager, Mode::Recorded, Mode::Fused];

/// y = 3 · x, where x stays on the device; y is kept there.
fn tripled() -> Graph {
    let mut b = Builder::new();
    let x = b.state("x", f32(&[5])).unwrap();
    b.update(x, x).unwrap();
    let y = b.scale(x, 3.0).unwrap();
    b.output_kept("y", y).unwrap();
    b.output("read", y).unwrap();
    b.finish().unwrap()
}

#[test]
fn tensors_on_the_device_take_turns_as_a_state() {
    let Some(session) = own_session() else { return };
    for mode in MODES {
        let program = session.compile(&tripled(), &Named::new(), &poisoned(mode)).unwrap();
        let given: Vec<Tensor> = (0..3).map(|k| fill(&[5], |i| (10 * k + i) as f64)).collect();
        let uploaded: Vec<DeviceTensor> = given.iter().map(|t| session.upload(t).unwrap()).collect();
        for k in [0, 1, 2, 1, 0] {
            program.copy_state("x", &uploaded[k]).unwrap();
            let before = Counts::of(&session);
            let copied = program.run(&[]).unwrap();
            let n = program.dispatches() as u64;
            let submits = if mode == Mode::Eager { n } else { 1 };
            let run = Counts { submits, passes: submits, dispatches: n, bind_groups: 0, pipelines: 0, uploads: 0 };
            assert_eq!(Counts::of(&session).since(before), run, "{mode}");
            program.write_state("x", &given[k]).unwrap();
            assert_eq!(copied, program.run(&[]).unwrap(), "{mode}: {k}");
            assert_eq!(copied["read"].to_f32()[4], (30 * k + 12) as f32, "{mode}: {k}");
        }
        // a copy comes after what was submitted before, and runs leave what was uploaded as it is
        program.copy_state("x", &uploaded[2]).unwrap();
        let in_flight = program.submit(&[]).unwrap();
        program.copy_state("x", &uploaded[0]).unwrap();
        assert_eq!(in_flight.wait().unwrap()["read"].to_f32()[0], 60.0, "{mode}");
        assert_eq!(program.read_state("x").unwrap(), given[0], "{mode}");
        assert_eq!(uploaded[2].read().unwrap(), given[2], "{mode}");
    }
}

#[test]
fn a_kept_output_becomes_another_program_s_state() {
    let Some(session) = session() else { return };
    let compile = || session.compile(&tripled(), &Named::new(), &CompileOptions::default()).unwrap();
    let (first, second) = (compile(), compile());
    first.write_state("x", &fill(&[5], |i| i as f64)).unwrap();
    let run = first.submit(&[]).unwrap();
    second.copy_state("x", &run.kept("y").unwrap()).unwrap();
    assert_eq!(second.run(&[]).unwrap()["read"].to_f32(), [0.0, 9.0, 18.0, 27.0, 36.0]);
}

#[test]
fn a_tensor_that_does_not_fit_a_state_is_told_why() {
    let (Some(session), Some(other)) = (own_session(), own_session()) else { return };
    let program = session.compile(&tripled(), &Named::new(), &CompileOptions::default()).unwrap();
    let fits = fill(&[5], |i| i as f64);
    let fails = |session: &Session, name: &str, tensor: &Tensor| {
        program.copy_state(name, &session.upload(tensor).unwrap()).unwrap_err().to_string()
    };
    assert_eq!(fails(&session, "z", &fits), "state \"z\" does not exist; the program's states are: x f32 (5)");
    for (tensor, rest) in [
        (fill(&[1, 5], |_| 0.0), "f32 (1, 5); compile one for this shape, or pad"),
        (fill_as(DType::I32, &[5], |_| 0.0), "i32 (5); give f32, since nothing is cast on the way in"),
    ] {
        assert_eq!(
            fails(&session, "x", &tensor),
            format!("state \"x\": the program was compiled for f32 (5), got {rest}")
        );
    }
    assert_eq!(
        fails(&other, "x", &fits),
        "state \"x\": the tensor is not on the program's device; upload it by the session that compiled the program, or \
         read it and write the state from the host"
    );
    // nothing was copied
    assert_eq!(program.read_state("x").unwrap().to_f32(), [0.0; 5]);
}
