//! What is computed when a graph is compiled, and what is left to the device.

use super::fused;
use super::written::{Result, f32};
use kiln::graph::{Binary, Builder, DType, TensorType, Unary};

#[test]
fn what_changes_nothing_is_folded() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3]))?;
    let one = b.constant(1.0, f32(&[]))?;
    let y = b.scale(x, 1.0)?;
    let y = b.mul(one, y)?;
    let y = b.div(y, one)?;
    let y = b.permute(y, &[1, 0])?;
    let y = b.permute(y, &[1, 0])?;
    let y = b.reshape(y, [3, 2])?;
    let y = b.reshape(y, [2, 3])?;
    let y = b.slice(y, 1, 0, 3)?;
    let y = b.broadcast(y, [2, 3])?;
    let y = b.concat(&[y], 0)?;
    let y = b.cast(y, DType::F32)?;
    b.output("y", y)?;
    let (graph, _) = fused(&b.finish()?)?;
    assert_eq!(graph.to_string(), "%0 = input [] : f32 (2, 3)  # x\noutput y = %0\n");
    Ok(())
}

#[test]
fn moves_are_composed_and_constants_computed() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3, 4]))?;
    let y = b.permute(x, &[1, 2, 0])?;
    let y = b.permute(y, &[1, 2, 0])?; // (4, 2, 3)
    let y = b.slice(y, 0, 1, 3)?;
    let y = b.slice(y, 0, 1, 2)?;
    b.output("moved", y)?;
    let two = b.constant(2.0, f32(&[]))?;
    let two = b.broadcast(two, [3, 1])?;
    let three = b.constant(3.0, f32(&[4]))?;
    let c = b.binary(Binary::Div, three, two)?;
    let c = b.unary(Unary::Neg, c)?;
    b.output("constant", c)?;
    let y = b.scale(x, 3.0)?;
    let y = b.scale(y, 4.0)?;
    b.output("scaled", y)?;
    let (graph, report) = fused(&b.finish()?)?;
    insta::assert_snapshot!(graph, @r"
    %0 = input [] : f32 (2, 3, 4)  # x
    %1 = permute([2, 0, 1]) [%0] : f32 (4, 2, 3)  # permute
    %2 = slice(axis 0, 2..4) [%1] : f32 (2, 2, 3)  # slice
    %3 = constant(-1.5f32) [] : f32 (3, 4)  # neg
    %4 = scale(12) [%0] : f32 (2, 3, 4)  # scale
    output moved = %2
    output constant = %3
    output scaled = %4
    ");
    insta::assert_snapshot!(report, @r"
    fold: permute: permute → permute
    fold: slice: slice → slice
    fold: broadcast: broadcast → constant
    fold: div: div → constant
    fold: neg: neg → constant
    fold: scale: scale → scale
    ");
    Ok(())
}

#[test]
fn what_would_change_a_number_is_not_folded() -> Result {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2]))?;
    let zero = b.constant(0.0, f32(&[2]))?;
    // −0 + 0 is 0
    let sum = b.add(x, zero)?;
    // f32 rounds 0.1 · 0.3 and x · 3 · 5 twice; 2^100 · 2^-100 overflows in between
    let tenth = b.constant(0.1, f32(&[2]))?;
    let rounded = b.scale(tenth, 0.3)?;
    let thrice = b.scale(x, 3.0)?;
    let fifteen = b.scale(thrice, 5.0)?;
    let large = b.scale(x, 2f32.powi(100))?;
    let back = b.scale(large, 2f32.powi(-100))?;
    // a factor of 2^-140 is subnormal
    let small = b.scale(x, 2f32.powi(-100))?;
    let tiny = b.scale(small, 2f32.powi(-40))?;
    b.output("tiny", tiny)?;
    // stretched
    let one = b.constant(1.0, f32(&[3, 2]))?;
    let wide = b.mul(x, one)?;
    for (name, value) in [("sum", sum), ("rounded", rounded), ("fifteen", fifteen), ("back", back), ("wide", wide)] {
        b.output(name, value)?;
    }
    // relu, min and max of NaN are NaN
    let nan = b.constant(f32::NAN, f32(&[2]))?;
    let relu = b.relu(nan)?;
    let two = b.constant(2.0, f32(&[2]))?;
    let (least, most) = (b.binary(Binary::Min, nan, two)?, b.binary(Binary::Max, two, nan)?);
    for (name, value) in [("relu", relu), ("least", least), ("most", most)] {
        b.output(name, value)?;
    }
    let (_, report) = fused(&b.finish()?)?;
    assert!(!report.contains("fold:"), "{report}");
    Ok(())
}

#[test]
fn an_f16_constant_that_its_kernel_rounds_twice_is_left_to_it() -> Result {
    // in f32 the product is the middle of two f16, which goes to the even one, and not to the nearest
    let mut b = Builder::new();
    let c = b.constant(1.000_976_6, TensorType::new(DType::F16, [2]))?;
    let y = b.scale(c, 0.999_512_2)?;
    b.output("y", y)?;
    let (graph, _) = fused(&b.finish()?)?;
    assert!(graph.nodes().any(|(_, n)| n.op.name() == "scale"), "{graph}");
    Ok(())
}
