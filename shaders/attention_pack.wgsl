// Rows of heads as f16 matrices of {{ u.side }} × {{ u.side }}, for units that multiply them: {{ names | join(", ") }}.
//
// A row is scaled by a power of two so that its largest magnitude lies between 2^14 and 2^15: no number overflows{{ ", and none
// is lost that its neighbours' sums would show" if split }}. factors = what undoes it{{ ", of v its logarithm to base 2 and its inverse" if logs }}. A row that holds an infinity or a
// NaN becomes zeros with a factor of NaN: whoever sees it gets NaN, whoever does not is left alone. Rows past the end are
// zeros. Matrices of a head follow each other row by row{{ ", each as its high and its low part: the upper 11 bits of its numbers and
// the rest" if split }}.
//
// A workgroup has 16 rows, of each 16 neighbouring invocations take every 16th four of its columns. Exact{{ " but for the 22nd
// bit" if split else ", rounded to f16" }}.
enable f16;

struct Params {
    groups: u32, // workgroups that have work
    heads: u32,
{% for name in names %}
    {{ name }}_offset: u32, {{ name }}_batch: u32, {{ name }}_row: u32, {{ name }}_head: u32,
    {{ name }}_rows: u32,
    {{ name }}_strips: u32, // workgroups a head
    {{ name }}_groups: u32, // workgroups up to and with this operand's
{% endfor %}
    d: u32, // head size
    tiles_offset: u32,
    factors_offset: u32,
}

{% include "shared/params.wgsl" %}
{% for name in names %}
@group(0) @binding({{ loop.index }}) var<storage, read> {{ name }}: array<{{ storage }}>;
{% endfor %}
@group(0) @binding({{ names | length + 1 }}) var<storage, read_write> tiles: array<{{ "f16" if u.scalar else "vec4<f16>" }}>;
@group(0) @binding({{ names | length + 2 }}) var<storage, read_write> factors: array<f32>;

{% include "shared/group.wgsl" %}
{% include "shared/heads.wgsl" %}
{% include "shared/halves.wgsl" %}
{% from "shared/units.wgsl" import put %}
{% set parts = width // u.side %}
{% set halves = u.halves | length %}
{% set fours = u.side * u.side // 4 %}
{% set held = (width // 4 + 15) // 16 %}

var<workgroup> found: array<vec4<u32>, 64>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    if group >= p.groups {
        return;
    }
    let r = lane / 16u;
    let x = lane % 16u;
    var row = 0u; // among those of all heads of all operands
    var rows = 0u;
    var i = 0u; // among the head's
    var logs = false;
{% for c in range(held) %}
    var value_{{ c }} = vec4<f32>(0.0);
{% endfor %}
    row = group * 16u + r;
{% for name in names %}
    {{ "} else " if not loop.first }}{{ "if group < p." ~ name ~ "_groups " if not loop.last }}{
        let strip = group{{ " - p." ~ names[loop.index0 - 1] ~ "_groups" if not loop.first }};
        let bh = strip / p.{{ name }}_strips;
        i = strip % p.{{ name }}_strips * 16u + r;
        let at = p.{{ name }}_offset + bh / p.heads * p.{{ name }}_batch + i * p.{{ name }}_row + bh % p.heads * p.{{ name }}_head;
        if i < p.{{ name }}_rows {
{% for c in range(held) %}
            if x + {{ c * 16 }}u < {{ columns }}u {
                value_{{ c }} = read_{{ name }}(at, (x + {{ c * 16 }}u) * 4u);
            }
{% endfor %}
        }
{% if logs and name == "v" %}
        logs = true;
{% endif %}
{% endfor %}
    }
    var largest = magnitude(value_0);
{% for c in range(1, held) %}
    largest = max(largest, magnitude(value_{{ c }}));
{% endfor %}
    found[lane / 4u][lane % 4u] = largest;
    workgroupBarrier();
    let four = max(max(found[r * 4u], found[r * 4u + 1u]), max(found[r * 4u + 2u], found[r * 4u + 3u]));
    largest = max(max(four.x, four.y), max(four.z, four.w));
    let scale = row_scale(largest);
    let at_tiles = p.tiles_offset + (row / {{ u.side }}u * {{ parts * halves * fours }}u + row % {{ u.side }}u * {{ u.side // 4 }}u);
{% for c in range(held) %}
    if x + {{ c * 16 }}u < {{ width // 4 }}u {
        let column = x + {{ c * 16 }}u;
        let at = at_tiles + column / {{ u.side // 4 }}u * {{ halves * fours }}u + column % {{ u.side // 4 }}u;
        let value = scaled(value_{{ c }}, scale);
{% if split %}
        let high = upper(value);
        {{ put("tiles", "at", "vec4<f16>(high)", u) }}
        {{ put("tiles", "at + " ~ fours ~ "u", "vec4<f16>(value - high)", u) }}
{% else %}
        {{ put("tiles", "at", "vec4<f16>(value)", u) }}
{% endif %}
    }
{% endfor %}
    if x == 0u {
{% if logs %}
        // pairs of four logarithms and four inverses, after what comes before
        if logs {
            let at = p.factors_offset + row + (row - (p.k_groups * 16u + row % 4u)) + row % 4u * 0u;
            factors[at] = row_logarithm(largest);
            factors[at + 4u] = row_inverse(largest);
        } else {
            factors[p.factors_offset + row] = row_factor(largest);
        }
{% else %}
        factors[p.factors_offset + row] = row_factor(largest);
{% endif %}
    }
}
