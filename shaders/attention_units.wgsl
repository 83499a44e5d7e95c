{% from "shared/units.wgsl" import enable, array, meet %}
{% from "shared/attend_place.wgsl" import place, addresses %}
{% from "shared/attend_block.wgsl" import clear_notes, hold, fetch, stage, next_block, functions %}
{% from "shared/attend_usual.wgsl" import near, usual_scales, stage_scaled %}
{% from "shared/attend_rows.wgsl" import each_row, across, own_scale, own_matrices, give %}
{% from "shared/attend_products.wgsl" import sums, multiply, put_products, take_weights, sum_up %}
// out = softmax(q kᵀ · scale + mask) v, without the scores in memory (Dao et al., arXiv 2205.14135; running maximum
// by Milakov and Gimelshein, arXiv 1805.02867), on units that multiply f16 matrices.
//
// A workgroup of {{ subs }} subgroups has {{ subs * rows }} queries of one head and walks over blocks of {{ block }} keys, which it stages as f16
// rows{{ " scaled by powers of two" if s.scaled }}{{ ", each element as a high and a low part" if split }}. A subgroup has {{ rows }} of the queries in registers and goes through
// its keys {{ step }} at a time: scores by the units into workgroup memory; there each lane has {{ "a query" if rows <= u.lanes else "queries" }} with its sum, and
// turns scores into weights, which the units multiply with the values.
//
// Weights are relative to a level that follows the maximum only when that exceeds it by more than 2^8, since the result
// is then scaled by way of workgroup memory.
{% if s.scaled %}
// Keys and values have a usual scale, that of some of them; a row that would lose by it has its own. From a block with
// such a row on a subgroup goes by the scale of each row: a weight is e^(score) times what undoes its value's scale, and
// the sum of weights has a maximum of its own.
{% endif %}
{% if dropout %}
// Dropout acts on the weights of the values, not on their sum.
{% endif %}
{{ enable(u) }}
enable f16;
{% include "shared/attend.wgsl" %}

{% if s.scaled %}
{% include "shared/halves.wgsl" %}

{{ near() }}
{% endif %}
{{ functions(s) }}
{% set sharers = u.lanes // rows if rows < u.lanes else 1 %}
{# queries of a lane #}
{% set own = rows * sharers // u.lanes %}
{% set tiles = rows // u.side %}
{% set runs = step // u.side %}
{# distances between rows, in vec4s: of scores, weights #}
{% set at_score = step // 4 + 2 %}
{% set at_weight = step // 4 + 2 %}
{# vec4s of scores of a row that are a lane's #}
{% set fours = step // 4 // sharers %}
const LOG2_E: f32 = 1.44269504;
// A maximum of nothing: smaller than any finite score.
const FLOOR: f32 = -3.0e38;
// Weights are below 2^ROOM in f16 when the level has followed.
const ROOM: f32 = 7.0;

{% for half in u.halves %}
{{ array("k_" ~ half, "f16", block * (width // 4 + 2), u) }}
{{ array("v_" ~ half, "f16", block * (width // 4 + 2), u) }}
{{ array("weights_" ~ half, "f16", subs * rows * at_weight, u) }}
{% endfor %}
{{ array("scores", "f32", subs * rows * at_score, u) }}
// one more than the first key of the last block that has a row {{ "of another scale than the usual" if s.scaled else "with an infinity or a NaN" }}
var<workgroup> odd: atomic<u32>;
{% if s.scaled %}
// what undoes the scale of each key, and how much larger, as a logarithm to base 2, that of each value is than the usual
var<workgroup> key_factors: array<f32, {{ block }}>;
var<workgroup> value_shifts: array<f32, {{ block }}>;
{% else %}
// and of the last block that has it in this place
var<workgroup> broken: array<atomic<u32>, {{ block }}>;
{% endif %}

fn largest(x: vec4<f32>) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    for (var go = group < p.groups; go; go = false) {
{{ place(subs * rows, false) }}
    let l = lane % {{ u.lanes }}u;
    let sub = lane / {{ u.lanes }}u;
    let own = first + sub * {{ rows }}u;
    let at_scores = sub * {{ rows * at_score }}u;
    let at_weights = sub * {{ rows * at_weight }}u;
    let valid = valid_keys(b);
    let last = end_of_keys(min(first + {{ subs * rows - 1 }}u, p.sq - 1u), valid);
    let own_last = select(0, end_of_keys(min(own + {{ rows - 1 }}u, p.sq - 1u), valid), own < p.sq);
{{ addresses(reads) }}
    let infinity = bitcast<f32>(0x7f800000u | p.zero);
{% if dropout %}
    let stream = stream_of(h);
{% endif %}
{% if s.scaled %}
{{ usual_scales(s, u) }}
    // whether the subgroup goes by the scale of each row, and the maximum that the sum is relative to then
    var apart = false;
    var top: array<f32, {{ own }}>;
    var q_scale: array<f32, {{ own }}>;
{% endif %}
{{ clear_notes(s) }}
    // of the lane's queries: what scores are multiplied with, the keys that they see, the sum of weights and the level;
    // maxima and levels are logarithms to base 2
    var query_factor: array<f32, {{ own }}>;
    var ends: array<i32, {{ own }}>;
    var sum: array<f32, {{ own }}>;
    var level: array<f32, {{ own }}>;
    var x: array<vec4<f32>, {{ own * fours }}>;
{{ each_row(rows, u) }}
            // queries past the end repeat the last one and are not stored
            let i = min(own + row, p.sq - 1u);
            query_factor[r] = p.scale * LOG2_E;
{% if s.scaled %}
{{ own_scale("q", rows, "p.sq", s, u) }}
            query_factor[r] *= row_factor(largest_q);
            top[r] = FLOOR;
{% endif %}
            ends[r] = end_of_keys(i, valid);
            sum[r] = 0.0;
            level[r] = FLOOR;
        }
{{ own_matrices("q", rows, "p.sq", "A", at_weight, s, u) }}
{{ sums("out", tiles, s, u) }}
{{ hold(["k", "v"], s) }}
{% set index = "u32(clamp(from_key + i32($r), 0, last - 1))" %}
{% if ahead %}
    if last > 0 {
        let id = lane;
        let from_key = 0;
{{ fetch(["k", "v"], index, s) }}
    }
{% endif %}
    for (var at_block = 0; at_block < last; at_block += {{ block }}) {
{{ next_block(["k", "v"], stage_scaled(s, u) if s.scaled else stage(["k", "v"], "u32(at_block) + 1u", s, u), index, "from_key", "at_block + " ~ block, "last", s) }}
        let strange = atomicLoad(&odd) == u32(at_block) + 1u{{ " || apart" if s.scaled }};
{% if s.scaled %}
        if strange && !apart {
            apart = true;
            top = level;
        }
{% endif %}
        // not the same for all subgroups: each stops where its queries see no more
        for (var t0 = 0; t0 < min({{ block }}, own_last - at_block); t0 += {{ step }}) {
            let t = u32(t0);
            let j = at_block + t0;
{{ multiply("s", "q", "k", tiles, runs, false, s, u) }}
{{ put_products("s", tiles, runs, at_score, u) }}
            {{ meet(u) }}
{% include "shared/attend_weights.wgsl" %}
            {{ meet(u) }}
{{ take_weights("w", tiles, runs, false, at_weight, u) }}
{{ sum_up("out", "w", "v", tiles, runs, s, u) }}
        }
        workgroupBarrier();
    }
    var mean: array<f32, {{ own }}>;
{{ each_row(rows, u) }}
{% if s.scaled %}
            // what the sum is relative to
            top[r] = select(level[r], top[r], apart);
{% endif %}
            var whole = sum[r];
{{ across("whole", "+", rows, u) }}
{% set top = "top" if s.scaled else "level" %}
            mean[r] = select(1.0 / whole, 0.0, whole == 0.0){{ " * p.keep" if dropout }};
{% if s.scaled %}
            mean[r] *= exp2(level[r] - top[r] + (f32(usual_value) - 141.0));
{% endif %}
{% if lse %}
            if own + row < p.sq {
                lse[p.lse_offset + bh * p.sq + own + row] = log_sum_exp({{ top }}[r] / LOG2_E, whole);
            }
{% endif %}
        }
{{ give("out", rows, "p.sq", "o", "mean[r]", at_score, s, u) }}
    }
}
