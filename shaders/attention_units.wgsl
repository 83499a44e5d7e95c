{% from "shared/units.wgsl" import enable, array, put, read, zero, load, load_sum, store, meet, put_halves %}
{% from "shared/attend_units.wgsl" import hold, fetch, largest_of, stage, within, column, own_scale, own_matrices, multiply, sum_up, give, each_row, mine, across, some, most, functions %}
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

// The exponent to scale a row of this largest magnitude by: the usual one where the row loses nothing by it; 0, which
// none is, for one that is broken.
fn near(magnitude: u32, usual: u32) -> u32 {
    let own = select(exponent(magnitude), 0u, broken(magnitude));
    return select(own, usual, magnitude == 0u || (own <= usual && own + 11u >= usual));
}
{% endif %}
{{ functions(s) }}
{% set parts = width // u.side %}
{% set sharers = u.lanes // rows if rows < u.lanes else 1 %}
{# queries of a lane #}
{% set own = rows * sharers // u.lanes %}
{% set tiles = rows // u.side %}
{% set runs = step // u.side %}
{# distances between rows, in vec4s: of staged keys and values, scores, weights #}
{% set at_row = width // 4 + 2 %}
{% set at_score = step // 4 + 2 %}
{% set at_weight = step // 4 + 2 %}
{# vec4s of a row that are a lane's: of scores, of a matrix #}
{% set fours = step // 4 // sharers %}
{% set few = u.side // 4 // sharers %}
const LOG2_E: f32 = 1.44269504;
// A maximum of nothing: smaller than any finite score.
const FLOOR: f32 = -3.0e38;
// Weights are below 2^ROOM in f16 when the level has followed.
const ROOM: f32 = 7.0;

{% for half in u.halves %}
{{ array("k_" ~ half, "f16", block * at_row, u) }}
{{ array("v_" ~ half, "f16", block * at_row, u) }}
{{ array("weights_" ~ half, "f16", subs * rows * at_weight, u) }}
{% endfor %}
{{ array("scores", "f32", subs * rows * at_score, u) }}
// one more than the first key of the last block that has a row {{ "of another scale than the usual" if s.scaled else "with an infinity or a NaN" }}
var<workgroup> odd: atomic<u32>;
{% if s.scaled %}
// what undoes the scale of each key, and how much larger, as a logarithm to base 2, that of each value is than the usual
var<workgroup> key_factors: array<vec4<f32>, {{ block // 4 }}>;
var<workgroup> value_shifts: array<vec4<f32>, {{ block // 4 }}>;
{% else %}
// and of the last block that has it in this place
var<workgroup> broken: array<atomic<u32>, {{ block }}>;
{% endif %}

{# the lane's scores number i of its query #}
{% macro score(i) %}{{ read("scores", "f32", "at_scores + row * " ~ at_score ~ "u + " ~ mine(i, rows, u), u) }}{% endmacro %}
{# the largest of them #}
{% macro largest() %}{% for i in range(1, fours) %}max({% endfor %}x[r * {{ fours }}u]{% for i in range(1, fours) %}, x[r * {{ fours }}u + {{ i }}u]){% endfor %}{% endmacro %}
{% macro stage_block() %}
{% if s.scaled %}
{{ largest_of(["k", "v"], s) }}
            let of_key = near(largest_0, usual_key);
            let of_value = near(largest_1, usual_value);
            let key_scale = scale_by(of_key, largest_0);
            let value_scale = scale_by(of_value, largest_1);
            let r = id / {{ s.share }}u;
            {{ within(0, s) }}{
{% for c in range(s.held) %}
{% set at = "r * " ~ at_row ~ "u + " ~ column(c, s) %}
{{ put_halves("k", at, "scaled(k_" ~ c ~ ", key_scale)", u) }}
{{ put_halves("v", at, "scaled(v_" ~ c ~ ", value_scale)", u) }}
{% endfor %}
                if id % {{ s.share }}u == 0u {
                    key_factors[r / 4u][r % 4u] = factor_by(of_key, largest_0);
                    value_shifts[r / 4u][r % 4u] = select(f32(of_value) - f32(usual_value), factor_by(of_value, largest_1), broken(largest_1));
                    if of_key != usual_key || of_value != usual_value {
                        atomicStore(&odd, u32(at_block) + 1u);
                    }
                }
            }
{% else %}
{{ stage(["k", "v"], "u32(at_block) + 1u", s, u) }}
{% endif %}
{% endmacro %}

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
    // the last block of every head, then the one before
    let heads = p.groups / p.blocks;
    let bh = group % heads;
    let first = (p.blocks - 1u - group / heads) * {{ subs * rows }}u;
    let b = bh / p.heads;
    let h = bh % p.heads;
    let l = lane % {{ u.lanes }}u;
    let sub = lane / {{ u.lanes }}u;
    let own = first + sub * {{ rows }}u;
    let at_scores = sub * {{ rows * at_score }}u;
    let at_weights = sub * {{ rows * at_weight }}u;
    let valid = valid_keys(b);
    let last = end_of_keys(min(first + {{ subs * rows - 1 }}u, p.sq - 1u), valid);
    let own_last = select(0, end_of_keys(min(own + {{ rows - 1 }}u, p.sq - 1u), valid), own < p.sq);
    let at_q = p.q_offset + b * p.q_batch + h * p.q_head;
    let at_k = p.k_offset + b * p.k_batch + h * p.k_head;
    let at_v = p.v_offset + b * p.v_batch + h * p.v_head;
    let infinity = bitcast<f32>(0x7f800000u | p.zero);
{% if dropout %}
    let stream = stream_of(h);
{% endif %}
{% if s.scaled %}
    // the usual exponents leave four bits above the largest of four columns of each of 32 rows
    var largest_key = 0u;
    var largest_value = 0u;
    for (var i = l; i < 32u; i += {{ u.lanes }}u) {
        let j = i * u32(max(last, 0)) / 32u;
        let c = i % {{ columns }}u * 4u;
        let key = magnitude(read_k(at_k + j * p.k_row, c));
        let value = magnitude(read_v(at_v + j * p.v_row, c));
        largest_key = max(largest_key, select(key, 0u, broken(key)));
        largest_value = max(largest_value, select(value, 0u, broken(value)));
    }
    let usual_key = exponent({{ most("largest_key", u) }}) + 4u;
    let usual_value = exponent({{ most("largest_value", u) }}) + 4u;
    let usual_factor = factor_by(usual_key, 0u);
    // whether the subgroup goes by the scale of each row, and the maximum that the sum is relative to then
    var apart = false;
    var top: array<f32, {{ own }}>;
    var q_scale: array<f32, {{ own }}>;
{% else %}
    for (var i = lane; i < {{ block }}u; i += {{ threads }}u) {
        atomicStore(&broken[i], 0u);
    }
{% endif %}
    if lane == 0u {
        atomicStore(&odd, 0u);
    }
    workgroupBarrier();
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
{% for c in range(parts) %}
{% for t in range(tiles) %}
    var out{{ t }}_{{ c }} = {{ zero(u) }};
{% endfor %}
{% endfor %}
{{ hold(["k", "v"], s) }}
{% set index = "u32(clamp(from_key + i32($r), 0, last - 1))" %}
{% if ahead %}
    {
        let id = lane;
        let from_key = 0;
{{ fetch(["k", "v"], index, s) }}
    }
{% endif %}
    for (var at_block = 0; at_block < last; at_block += {{ block }}) {
{% if ahead %}
        {
            let id = lane;
{{ stage_block() }}
        }
        workgroupBarrier();
        // a branch: without, compilers move reads to where they are needed
        if at_block + {{ block }} < last {
            let id = lane;
            let from_key = at_block + {{ block }};
{{ fetch(["k", "v"], index, s) }}
        }
{% else %}
        for (var id = lane; id < {{ block * s.share }}u; id += {{ threads }}u) {
            let from_key = at_block;
{{ fetch(["k", "v"], index, s) }}
{{ stage_block() }}
        }
        workgroupBarrier();
{% endif %}
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
{% for t in range(tiles) %}
{% for run in range(runs) %}
            {{ store("s" ~ t ~ "_" ~ run, "scores", "at_scores + " ~ (t * u.side * at_score + run * u.side // 4) ~ "u", at_score ~ "u", u) }}
{% endfor %}
{% endfor %}
            {{ meet(u) }}
{{ each_row(rows, u) }}
{% for i in range(fours) %}
                x[r * {{ fours }}u + {{ i }}u] = {{ score(i) }} * {{ "(usual_factor * query_factor[r])" if s.scaled else "query_factor[r]" }};
{% endfor %}
                if {{ "true" if mask else "strange || j + " ~ step ~ " > ends[r]" }} {
                    let i = min(own + row, p.sq - 1u);
                    let at_m = {% if mask %}p.m_offset + b * p.m_batch + i * p.m_row + h * p.m_head{% else %}0u{% endif %};
{% for i in range(fours) %}
                    {
                        let four = t / 4u + {{ mine(i, rows, u) }};
                        let key = u32(at_block) + four * 4u;
                        var y = x[r * {{ fours }}u + {{ i }}u];
{% if s.scaled %}
                        if strange {
                            y = {{ score(i) }} * (key_factors[four] * query_factor[r]);
                        }
{% else %}
{% for e in range(4) %}
                        if strange && atomicLoad(&broken[four * 4u + {{ e }}u]) == u32(at_block) + 1u {
                            y.{{ "xyzw"[e] }} = bitcast<f32>(0x7fc00000u | p.zero);
                        }
{% endfor %}
{% endif %}
                        y = vec4<f32>({% for e in range(4) %}{{ "LOG2_E * " if mask }}masked(y.{{ "xyzw"[e] }}{{ " / LOG2_E" if mask }}, at_m, key + {{ e }}u, ends[r]){{ ", " if e < 3 }}{% endfor %});
                        x[r * {{ fours }}u + {{ i }}u] = select(y, vec4<f32>(-infinity), y <= vec4<f32>(HIDDEN));
                    }
{% endfor %}
                }
            }
{% if s.scaled %}
            // a loop, since naga takes a condition for one that differs between lanes
            for (var go = strange; go; go = false) {
{{ each_row(rows, u) }}
                    var m = largest({{ largest() }});
{{ across("m", "max", rows, u) }}
                    let new_top = max(top[r], m);
                    var weights = vec4<f32>(0.0);
{% for i in range(fours) %}
                    {
                        let y = x[r * {{ fours }}u + {{ i }}u];
                        weights += exp2(y - vec4<f32>(new_top));
                        x[r * {{ fours }}u + {{ i }}u] = select(y + value_shifts[t / 4u + {{ mine(i, rows, u) }}], y, y <= vec4<f32>(HIDDEN));
                    }
{% endfor %}
                    sum[r] = fma(sum[r], exp2(top[r] - new_top), (weights.x + weights.y) + (weights.z + weights.w));
                    top[r] = new_top;
                }
            }
{% endif %}
            var above = false;
            var most: array<f32, {{ own }}>;
{{ each_row(rows, u) }}
                var m = largest({{ largest() }});
{{ across("m", "max", rows, u) }}
                most[r] = m;
                above = above || m > level[r] + (ROOM + 8.0);
            }
            for (var rise = {{ some("above", u) }}; rise; rise = false) {
                var begun = false;
{{ each_row(rows, u) }}
                    let new_level = max(level[r], most[r] - ROOM);
                    most[r] = exp2(level[r] - new_level);
                    begun = begun || level[r] > FLOOR;
                    level[r] = new_level;
                    sum[r] *= {{ "select(most[r], 1.0, strange)" if s.scaled else "most[r]" }};
                }
                for (var scale = {{ some("begun", u) }}; scale; scale = false) {
{% for c in range(parts) %}
{% for t in range(tiles) %}
                    {{ store("out" ~ t ~ "_" ~ c, "scores", "at_scores + " ~ t * u.side * at_score ~ "u", at_score ~ "u", u) }}
{% endfor %}
                    {{ meet(u) }}
{{ each_row(rows, u) }}
{% for four in range(few) %}
{% set at = "at_scores + row * " ~ at_score ~ "u + " ~ mine(four, rows, u) %}
                        {{ put("scores", at, read("scores", "f32", at, u) ~ " * most[r]", u) }}
{% endfor %}
                    }
                    {{ meet(u) }}
{% for t in range(tiles) %}
                    {{ load_sum("out" ~ t ~ "_" ~ c, "scores", "at_scores + " ~ t * u.side * at_score ~ "u", at_score ~ "u", u) }}
{% endfor %}
                    {{ meet(u) }}
{% endfor %}
                }
            }
{{ each_row(rows, u) }}
                var weights = vec4<f32>(0.0);
{% for i in range(fours) %}
                {
                    var w = exp2(x[r * {{ fours }}u + {{ i }}u] - vec4<f32>(level[r]));
                    weights += w;
{% if dropout %}
                    let z = kept(weights_of(b, min(own + row, p.sq - 1u)) + u32(j) + ({{ mine(i, rows, u) }}) * 4u, stream);
                    w = select(w, vec4<f32>(0.0), z == vec4<f32>(0.0));
{% endif %}
{{ put_halves("weights", "at_weights + row * " ~ at_weight ~ "u + " ~ mine(i, rows, u), "w", u) }}
                }
{% endfor %}
                sum[r] += {{ "select((weights.x + weights.y) + (weights.z + weights.w), 0.0, strange)" if s.scaled else "(weights.x + weights.y) + (weights.z + weights.w)" }};
            }
            {{ meet(u) }}
{% for t in range(tiles) %}
{% for run in range(runs) %}
{% for half in u.halves %}
            {{ load("w" ~ t ~ "_" ~ run ~ "_" ~ half, "A", "weights_" ~ half, "at_weights + " ~ (t * u.side * at_weight + run * u.side // 4) ~ "u", at_weight ~ "u", true, u) }}
{% endfor %}
{% endfor %}
{% endfor %}
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
