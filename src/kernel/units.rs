//! In: a device's matrix units and how operands are split; out: what the macros of shared/units.wgsl are given. Knows no
//! kernel.

use super::View;
use crate::caps::MatrixUnits;
use minijinja::{Value, context};

/// Where the largest exponents of an f32 operand's rows are, biased, as u32: a product scales its rows by them, so that
/// they fit f16.
#[derive(Clone, Debug, PartialEq)]
pub struct Exponents {
    /// (batch…, rows) of the first part.
    pub view: View,
    /// How many parts of its elements a row is in; the largest of their exponents counts.
    pub parts: usize,
    /// From one part to the next, in elements.
    pub part: usize,
}

/// How a kernel uses matrix units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Units {
    /// The units.
    pub units: MatrixUnits,
    /// f32 operands are split into two f16 numbers and make three products; else they are rounded and make one.
    pub split: bool,
}

impl Units {
    /// What tells problems on them from those in multiply-adds.
    pub fn words(self) -> String {
        format!(" {:?} {}", self.units, if self.split { "split" } else { "rounded" })
    }

    /// The `u` of shared/units.wgsl: `emulated`, `side`, `lanes`, `scalar`, the type of each role, and `halves`, one name
    /// for each f16 number of an element.
    pub fn context(self) -> Value {
        let (side, lanes) = (self.units.side(), self.units.lanes());
        let emulated = matches!(self.units, MatrixUnits::Emulated { .. });
        // Metal's loads and stores want pointers to scalars, and its matrices are of 8
        let scalar = side == 8;
        let halves = if self.split { vec!["hi", "lo"] } else { vec!["hi"] };
        context! { emulated, side, lanes, scalar, halves }
    }
}

#[cfg(test)]
mod tests {
    use super::Units;
    use crate::caps::MatrixUnits;
    use crate::kernel::template::render_text;
    use crate::kernel::tests::validated;
    use minijinja::context;

    /// Every macro once: a product of two stages, folded, and stored.
    const TEXT: &str = r#"{% import "shared/units.wgsl" as unit %}
{{ unit.enable(u) }}
enable f16;
@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;
{{ unit.array("left", "f16", 256, u) }}
{{ unit.array("right", "f16", 256, u) }}
{{ unit.array("result", "f32", 256, u) }}
@compute @workgroup_size({{ u.lanes }})
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var i = lane; i < 256u; i += {{ u.lanes }}u) {
        {{ unit.put("left", "i", "vec4<f16>(1.0)", u) }}
        {{ unit.put("right", "i", "vec4<f16>(2.0)", u) }}
    }
    workgroupBarrier();
    var sum = {{ unit.zero(u) }};
    for (var k = 0u; k < 4u; k++) {
        var part = {{ unit.zero(u) }};
        {{ unit.load("l", "A", "left", "k", 8, true, u) }}
        {{ unit.load("r", "B", "right", "k", "8u", false, u) }}
        {{ unit.multiply_add("part", "l", "r", u) }}
        {{ unit.fold("sum", "part", u) }}
    }
    {{ unit.store("sum", "result", "0u", "8u", u) }}
    workgroupBarrier();
    out[lane] = {{ unit.read("result", "f32", "lane", u) }};
}
"#;

    #[test]
    fn macros_are_valid_on_units_and_emulated() {
        for side in [8, 16] {
            for units in [MatrixUnits::Device { side, lanes: 32 }, MatrixUnits::Emulated { side }] {
                let source = render_text(TEXT, context! { u => Units { units, split: true }.context() });
                validated(&source, Some(units), &units);
            }
        }
    }
}
