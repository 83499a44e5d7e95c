// {{ "A stack of linear layers backwards, from the gradient of its result to that of its input" if backward else "A stack of linear layers of one width" }}, in one dispatch, on matrix
// units of {{ u.side }} × {{ u.side }}: a workgroup carries {{ rows }} rows through all layers.
//
// Rows lie in workgroup memory as f16. Each of {{ s.subs }} subgroups makes {{ s.over * u.side }} columns of all rows, from weights that it
// stages for itself, {{ u.side }} inner elements at a time, as pack_weights.wgsl has laid them out. They are read eight at a time, as words.
{% if s.ahead %}
// Those of the next {{ s.ahead }} steps are on their way to registers meanwhile, across layers too.
{% endif %}
// Sums go through workgroup memory, since only there a lane can reach its numbers.
{% if scaled %}
//
// Each row is scaled by a power of two that brings its largest number to about 2^14, so that no f16 number overflows, and
// so is each column of weights; both are taken back from sums. A row that holds an infinity or a NaN becomes NaN.
{% endif %}
{% if split %}
// A number is split into hi, its upper 11 bits, and lo, the rest. The units cut off what a sum cannot hold instead of rounding it,
// so hi·hi is summed on its own,{% if s.ahead %} {{ fold * u.side }} inner elements at a time,{% endif %} and hi·lo + lo·hi.
{% endif %}
{% import "shared/units.wgsl" as unit %}
{% from "shared/stack_rows.wgsl" import place, write, note_largest, stage_rows, take_sums, undo_scales %}
{% import "shared/stack_weights.wgsl" as weights %}
{{ unit.enable(u) }}
enable f16;

{% include "shared/stack.wgsl" %}
{% if scaled %}
{% include "shared/halves.wgsl" %}
{% endif %}

// A layer's weights, in eights.
const LAYER: u32 = {{ s.blocks * s.step }}u;

{% for half in u.halves %}
{{ unit.array("rows_" ~ half, "f16", rows * s.at_row, u) }}
{% endfor %}
{{ unit.array("staged", "f16", s.subs * s.stages * s.region, u) }}
{{ unit.array("sums", "f32", s.subs * u.side * s.at_sum, u) }}
{% if scaled %}
// The largest magnitude of each row in each subgroup's columns.
var<workgroup> largest: array<u32, {{ rows * s.subs }}>;
{% endif %}

{% include "shared/stack_finish.wgsl" %}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    // naga does not see that a return would be uniform
    for (var go = group < p.groups; go; go = false) {
    let first = group * {{ rows }}u;
    let last = p.rows - 1u;
    let sub = lane / {{ u.lanes }}u;
    let l = lane % {{ u.lanes }}u;
    let row_0 = l / {{ s.fours }}u;
    let column_0 = sub * {{ s.over * u.side // 4 }}u + l % {{ s.fours }}u;
    let at_sums = sub * {{ u.side * s.at_sum }}u;
    let at_staged = sub * {{ s.stages * s.region }}u;
    // the layer's weights of the subgroup's columns
    var at_w = sub * {{ s.eights }}u{{ " + (p.layers - 1u) * LAYER" if backward }};
{% for k in range(s.ahead) %}
{{ weights.fetch("var ", "at_w", k, s, u) }}
{% endfor %}
{% for own in s.lane_rows %}
{% if scaled %}
    var up{{ own.of }}: f32;
    var down{{ own.of }}: f32;
{% endif %}
{% for four in own.held %}
    var v{{ four.of }} = vec4<f32>(x[p.x_offset + {{ place(four, "", s) }}]);
{% if backward %}
    v{{ four.of }} = finish(v{{ four.of }}, vec4<f32>(y[p.y_offset + {{ place(four, "", s) }}]));
{{ write("dz", four, "(p.layers - 1u)", scalar, s) }}
{% elif keep %}
{{ write("kept", four, "", scalar, s) }}
{% endif %}
{% endfor %}
{% endfor %}
    for (var i = 0u; i < p.layers; i++) {
        let layer = {{ "p.layers - 1u - i" if backward else "i" }};
{% if scaled %}
{{ note_largest(s, u) }}
{% endif %}
        // all have read the rows before
        workgroupBarrier();
{{ stage_rows(scaled, s, u) }}
        workgroupBarrier();
{% for column in s.columns %}
{% set c = loop.index0 %}
{% if scaled %}
        let f{{ c }} = factors[layer * {{ s.quads }}u + (column_0 + {{ column }}u)];
{% endif %}
{% if backward %}
{% for own in s.lane_rows %}
        let e{{ own.of }}_{{ c }} = vec4<f32>(kept[p.kept_offset + {{ place(own.held[c], "layer", s) }}]);
{% endfor %}
{% else %}
        let e{{ c }} = {{ "vec4<f32>(b[p.b_offset + layer * " ~ s.quads ~ "u + (column_0 + " ~ column ~ "u)])" if bias else "vec4<f32>(0.0)" }};
{% endif %}
{% endfor %}
{% for m in s.matrices %}
        var sum{{ m }} = {{ unit.zero(u) }};
{% if split %}
        var part{{ m }} = {{ unit.zero(u) }};
        var rest{{ m }} = {{ unit.zero(u) }};
{% endif %}
{% endfor %}
        // the last layer's end fetches its first weights again
        let at_next = select(at_w, at_w {{ "-" if backward else "+" }} LAYER, i + 1u < p.layers);
{% if s.ahead %}
{% for k in range(s.blocks) %}
        {
{% if s.stages == 1 and k > 0 %}
            {{ unit.meet(u) }}
{% endif %}
{% for j in range(s.eights // u.lanes) %}
{{ weights.stage("l + " ~ j * u.lanes ~ "u", "b" ~ k % s.ahead ~ "_" ~ j, k % s.stages * s.region, s, u) }}
{% endfor %}
            {{ unit.meet(u) }}
{{ weights.fetch("", "at_w" if k + s.ahead < s.blocks else "at_next", (k + s.ahead) % s.blocks, s, u) }}
{{ weights.products(k ~ "u", k % s.stages * s.region, s, u) }}
{% if split and (k + 1) % fold == 0 and k + 1 < s.blocks %}
{{ weights.add("part", s, u) }}
{% for m in s.matrices %}
            part{{ m }} = {{ unit.zero(u) }};
{% endfor %}
{% endif %}
        }
{% endfor %}
{% else %}
        for (var k = 0u; k < {{ s.blocks }}u; k++) {
            {{ unit.meet(u) }}
            for (var e = l; e < {{ s.eights }}u; e += {{ u.lanes }}u) {
{{ weights.stage("e", "w[at_w + k * " ~ s.step ~ "u + e]", 0, s, u) }}
            }
            {{ unit.meet(u) }}
{{ weights.products("k", 0, s, u) }}
        }
{% endif %}
        at_w = at_next;
{% if split %}
{{ weights.add("part", s, u) }}
{{ weights.add("rest", s, u) }}
{% endif %}
{{ take_sums(s, u) }}
{% if scaled %}
{{ undo_scales(s) }}
{% endif %}
{% if backward %}
        if layer > 0u {
{% for own in s.lane_rows %}
{% for four in own.held %}
            v{{ four.of }} = finish(v{{ four.of }}, e{{ four.of }});
{{ write("dz", four, "(layer - 1u)", scalar, s) }}
{% endfor %}
{% endfor %}
        }
{% else %}
{% for own in s.lane_rows %}
{% for four in own.held %}
        v{{ four.of }} = finish(v{{ four.of }}, e{{ loop.index0 }});
{% endfor %}
{% endfor %}
{% if keep %}
        if i + 1u < p.layers {
{% for own in s.lane_rows %}
{% for four in own.held %}
{{ write("kept", four, "(layer + 1u)", scalar, s) }}
{% endfor %}
{% endfor %}
        }
{% endif %}
{% endif %}
    }
{% for own in s.lane_rows %}
{% for four in own.held %}
{{ write("dx" if backward else "y", four, "", scalar, s) }}
{% endfor %}
{% endfor %}
    }
}
