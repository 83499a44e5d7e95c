{% from "shared/units.wgsl" import enable, array, put, read, zero, load, load_sum, multiply_add, fold, store, meet, put_halves, product %}
// out = softmax(q kᵀ · scale + mask) v, without the scores in memory (Dao et al., arXiv 2205.14135; running maximum
// by Milakov and Gimelshein, arXiv 1805.02867), on units that multiply f16 matrices.
//
// A workgroup of {{ subs }} subgroups has {{ subs * rows }} queries of one head and walks over blocks of {{ block }} keys, which it stages as f16
// rows scaled by powers of two{{ ", each element as a high and a low part" if split }}. A subgroup has {{ rows }} of the queries in registers and goes through
// its keys {{ step }} at a time: scores by the units into workgroup memory; there each lane has {{ "a query" if rows == u.lanes else "queries" }} with its sum and
// maxima, and turns scores into weights, which the units multiply with the values.
//
// Values of a key are scaled on their own, so a weight is e^(score) times what undoes the scale, relative to a maximum
// of these products; the sum of weights has a maximum of its own. The former only follows when it is exceeded by more
// than 2^8, since the result is then scaled by way of workgroup memory.
{% if dropout %}
// Dropout acts on the weights of the values, not on their sum.
{% endif %}
{{ enable(u) }}
enable f16;
{% include "shared/attend.wgsl" %}

{% include "shared/halves.wgsl" %}

{% set parts = width // u.side %}
{# lanes that share a query, and queries of a lane #}
{% set sharers = u.lanes // rows if rows < u.lanes else 1 %}
{% set own = rows * sharers // u.lanes %}
{% set tiles = rows // u.side %}
{% set runs = step // u.side %}
{# distances between rows, in vec4s: of staged keys and values, scores, weights #}
{% set at_row = width // 4 + 2 %}
{% set at_score = step // 4 + 1 %}
{% set at_weight = step // 4 + 2 %}
{# vec4s of a row that are a lane's: of scores, of a matrix #}
{% set fours = step // 4 // sharers %}
{% set few = u.side // 4 // sharers %}
const LOG2_E: f32 = 1.44269504;
// A maximum of nothing: smaller than any finite score.
const FLOOR: f32 = -3.0e38;
// Weights are below 2^ROOM in f16.
const ROOM: f32 = 7.0;

{% for half in u.halves %}
{{ array("keys_" ~ half, "f16", block * at_row, u) }}
{{ array("values_" ~ half, "f16", block * at_row, u) }}
{{ array("weights_" ~ half, "f16", subs * rows * at_weight, u) }}
{% endfor %}
{{ array("scores", "f32", subs * rows * at_score, u) }}
// what undoes the scale of each key, and its logarithm to base 2 for each value
var<workgroup> key_factors: array<vec4<f32>, {{ block // 4 }}>;
var<workgroup> value_shifts: array<vec4<f32>, {{ block // 4 }}>;

{% macro some(x) %}{% if u.emulated %}{{ x }}{% else %}subgroupAny({{ x }}){% endif %}{% endmacro %}
{# what a lane does for each of its queries, whose number among the subgroup's is `row` #}
{% macro each_row() %}
{% if own == 1 %}
        {
            let r = 0u;
            let row = l{{ " % " ~ rows ~ "u" if sharers > 1 }};
{% else %}
        for (var r = 0u; r < {{ own }}u; r += 1u) {
            let row = r * {{ u.lanes }}u + l;
{% endif %}
{% endmacro %}
{# where the lane's vec4s of a row begin, of so many each #}
{% macro mine(many) %}{{ "l / " ~ rows ~ "u * " ~ many ~ "u + " if sharers > 1 }}{% endmacro %}
{# with what the other lane of the row has #}
{% macro both(name, combine) %}
{% if sharers > 1 %}
                {{ name }} = {{ combine }}{{ name }}, subgroupShuffleXor({{ name }}, {{ rows }}u));
{% endif %}
{% endmacro %}
{# its share of a key's row and of its value's #}
{% macro fetch() %}
{% for c in range(held) %}
            {
                let c = lane % {{ share }}u + {{ c * share }}u;
                key_{{ c }} = vec4<f32>(0.0);
                value_{{ c }} = vec4<f32>(0.0);
                // a key that nobody sees may hold anything: 0 in its place
                if r < {{ block }}u && j0 + i32(r) < last{{ " && c < " ~ columns ~ "u" if columns * 4 != width }} {
                    key_{{ c }} = read_k(at_k + u32(j0 + i32(r)) * p.k_row, c * 4u);
                    value_{{ c }} = read_v(at_v + u32(j0 + i32(r)) * p.v_row, c * 4u);
                }
            }
{% endfor %}
{% endmacro %}
{% macro stage() %}
            var key = magnitude(key_0);
            var value = magnitude(value_0);
{% for c in range(1, held) %}
            key = max(key, magnitude(key_{{ c }}));
            value = max(value, magnitude(value_{{ c }}));
{% endfor %}
{% for by in shuffles %}
            key = max(key, subgroupShuffleXor(key, {{ by }}u));
            value = max(value, subgroupShuffleXor(value, {{ by }}u));
{% endfor %}
            let key_scale = row_scale(key);
            let value_scale = row_scale(value);
            if r < {{ block }}u {
{% for c in range(held) %}
{% set at = "r * " ~ at_row ~ "u + lane % " ~ share ~ "u + " ~ c * share ~ "u" %}
{{ put_halves("keys", at, "scaled(key_" ~ c ~ ", key_scale)", u) }}
{{ put_halves("values", at, "scaled(value_" ~ c ~ ", value_scale)", u) }}
{% endfor %}
                if lane % {{ share }}u == 0u {
                    key_factors[r / 4u][r % 4u] = row_factor(key);
                    value_shifts[r / 4u][r % 4u] = row_shift(value);
                }
            }
{% endmacro %}

// The logarithm to base 2 of a row's factor.
fn row_shift(magnitude: u32) -> f32 {
    return select(f32(exponent(magnitude)) - 141.0, row_factor(magnitude), broken(magnitude));
}

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
    // of the lane's queries: what scores are multiplied with, the keys that they see, the sum of weights with its
    // maximum, and the maximum that the result is relative to; maxima are logarithms to base 2
    var query_factor: array<f32, {{ own }}>;
    var ends: array<i32, {{ own }}>;
    var sum: array<f32, {{ own }}>;
    var top: array<f32, {{ own }}>;
    var level: array<f32, {{ own }}>;
    var query_scale: array<f32, {{ own }}>;
    var y: array<vec4<f32>, {{ own * fours }}>;
{{ each_row() }}
            // queries past the end repeat the last one and are not stored
            let i = min(own + row, p.sq - 1u);
            var query = 0u;
            for (var c = {{ "l / " ~ rows ~ "u" if sharers > 1 else "0u" }}; c < {{ columns }}u; c += {{ sharers }}u) {
                query = max(query, magnitude(read_q(at_q + i * p.q_row, c * 4u)));
            }
{{ both("query", "max(") }}
            query_scale[r] = row_scale(query);
            query_factor[r] = row_factor(query) * p.scale;
            ends[r] = end_of_keys(i, valid);
            sum[r] = 0.0;
            top[r] = FLOOR;
            level[r] = FLOOR;
        }
{% for c in range(parts) %}
{{ each_row() }}
            let i = min(own + row, p.sq - 1u);
{% for four in range(few) %}
            {
                let column = {{ mine(few) }}{{ four }}u;
                var value = vec4<f32>(0.0);
                if column + {{ c * u.side // 4 }}u < {{ columns }}u {
                    value = scaled(read_q(at_q + i * p.q_row, (column + {{ c * u.side // 4 }}u) * 4u), query_scale[r]);
                }
{{ put_halves("weights", "at_weights + row * " ~ at_weight ~ "u + column", "value", u) }}
            }
{% endfor %}
        }
    {{ meet(u) }}
{% for t in range(tiles) %}
{% for half in u.halves %}
    {{ load("q" ~ t ~ "_" ~ c ~ "_" ~ half, "A", "weights_" ~ half, "at_weights + " ~ t * u.side * at_weight ~ "u", at_weight ~ "u", true, u) }}
{% endfor %}
    var o{{ t }}_{{ c }} = {{ zero(u) }};
{% endfor %}
    {{ meet(u) }}
{% endfor %}
{% for c in range(held) %}
    var key_{{ c }} = vec4<f32>(0.0);
    var value_{{ c }} = vec4<f32>(0.0);
{% endfor %}
{% if ahead %}
    {
        let r = lane / {{ share }}u;
        let j0 = 0;
{{ fetch() }}
    }
{% endif %}
    for (var at_block = 0; at_block < last; at_block += {{ block }}) {
{% if ahead %}
        {
            let r = lane / {{ share }}u;
{{ stage() }}
        }
        workgroupBarrier();
        {
            let r = lane / {{ share }}u;
            let j0 = at_block + {{ block }};
{{ fetch() }}
        }
{% else %}
        for (var r0 = 0u; r0 < {{ block }}u; r0 += {{ threads // share }}u) {
            let r = r0 + lane / {{ share }}u;
            let j0 = at_block;
{{ fetch() }}
{{ stage() }}
        }
        workgroupBarrier();
{% endif %}
        // not the same for all subgroups: each stops where its queries see no more
        for (var t0 = 0; t0 < min({{ block }}, own_last - at_block); t0 += {{ step }}) {
            let t = u32(t0);
            let j = at_block + t0;
{% for t in range(tiles) %}
{% for run in range(runs) %}
            var s{{ t }}_{{ run }} = {{ zero(u) }};
{% endfor %}
{% endfor %}
{% for c in range(parts) %}
{% for run in range(runs) %}
            {
{% for half in u.halves %}
                {{ load("k_" ~ half, "B", "keys_" ~ half, "(t + " ~ run * u.side ~ "u) * " ~ at_row ~ "u + " ~ c * u.side // 4 ~ "u", at_row ~ "u", false, u) }}
{% endfor %}
{% for t in range(tiles) %}
{{ product("s" ~ t ~ "_" ~ run, "q" ~ t ~ "_" ~ c, "k", u) }}
{% endfor %}
            }
{% endfor %}
{% endfor %}
{% for t in range(tiles) %}
{% for run in range(runs) %}
            {{ store("s" ~ t ~ "_" ~ run, "scores", "at_scores + " ~ (t * u.side * at_score + run * u.side // 4) ~ "u", at_score ~ "u", u) }}
{% endfor %}
{% endfor %}
            {{ meet(u) }}
            var above = false;
            var most: array<f32, {{ own }}>;
{{ each_row() }}
                let factor = query_factor[r];
                let at = at_scores + row * {{ at_score }}u{{ " + l / " ~ rows ~ "u * " ~ fours ~ "u" if sharers > 1 }};
                let at_key = t / 4u{{ " + l / " ~ rows ~ "u * " ~ fours ~ "u" if sharers > 1 }};
{% for i in range(fours) %}
                var x{{ i }} = {{ read("scores", "f32", "at + " ~ i ~ "u", u) }} * (key_factors[at_key + {{ i }}u] * factor);
                y[r * {{ fours }}u + {{ i }}u] = fma(x{{ i }}, vec4<f32>(LOG2_E), value_shifts[at_key + {{ i }}u]);
{% endfor %}
                let end = ends[r];
                let first_key = u32(j){{ " + l / " ~ rows ~ "u * " ~ fours * 4 ~ "u" if sharers > 1 }};
                if {{ "true" if mask else "j + " ~ step ~ " > end" }} {
                    let i = min(own + row, p.sq - 1u);
                    let at_m = {% if mask %}p.m_offset + b * p.m_batch + i * p.m_row + h * p.m_head{% else %}0u{% endif %};
{% for i in range(fours) %}
                    x{{ i }} = vec4<f32>({% for e in range(4) %}masked(x{{ i }}.{{ "xyzw"[e] }}, at_m, first_key + {{ i * 4 + e }}u, end){{ ", " if e < 3 }}{% endfor %});
                    y[r * {{ fours }}u + {{ i }}u] = select(fma(x{{ i }}, vec4<f32>(LOG2_E), value_shifts[at_key + {{ i }}u]), vec4<f32>(-infinity), x{{ i }} <= vec4<f32>(HIDDEN));
{% endfor %}
                }
                var x = largest({% for i in range(1, fours) %}max({% endfor %}x0{% for i in range(1, fours) %}, x{{ i }}){% endfor %});
                var z = largest({% for i in range(1, fours) %}max({% endfor %}y[r * {{ fours }}u]{% for i in range(1, fours) %}, y[r * {{ fours }}u + {{ i }}u]){% endfor %});
{{ both("x", "max(") }}
{{ both("z", "max(") }}
                let new_top = max(top[r], x * LOG2_E);
                var new_sum = vec4<f32>(0.0);
{% for i in range(fours) %}
                new_sum += exp2(fma(x{{ i }}, vec4<f32>(LOG2_E), vec4<f32>(-new_top)));
{% endfor %}
                sum[r] = fma(sum[r], exp2(top[r] - new_top), (new_sum.x + new_sum.y) + (new_sum.z + new_sum.w));
                top[r] = new_top;
                most[r] = z;
                above = above || z > level[r] + 8.0;
            }
            // a loop, since naga takes a condition for one that differs between lanes
            for (var rise = {{ some("above") }}; rise; rise = false) {
{{ each_row() }}
                    let new_level = max(level[r], most[r]);
                    most[r] = exp2(level[r] - new_level);
                    level[r] = new_level;
                }
{% for c in range(parts) %}
{% for t in range(tiles) %}
                {{ store("o" ~ t ~ "_" ~ c, "scores", "at_scores + " ~ t * u.side * at_score ~ "u", at_score ~ "u", u) }}
{% endfor %}
                {{ meet(u) }}
{{ each_row() }}
{% for four in range(few) %}
{% set at = "at_scores + row * " ~ at_score ~ "u + " ~ mine(few) ~ four ~ "u" %}
                    {{ put("scores", at, read("scores", "f32", at, u) ~ " * most[r]", u) }}
{% endfor %}
                }
                {{ meet(u) }}
{% for t in range(tiles) %}
                {{ load_sum("o" ~ t ~ "_" ~ c, "scores", "at_scores + " ~ t * u.side * at_score ~ "u", at_score ~ "u", u) }}
{% endfor %}
                {{ meet(u) }}
{% endfor %}
            }
{{ each_row() }}
                let up = ROOM - level[r];
{% for i in range(fours) %}
{% if dropout %}
                {
                    let i = min(own + row, p.sq - 1u);
                    let z = kept(weights_of(b, i) + u32(j) + ({{ mine(fours) }}{{ i }}u) * 4u, stream);
                    y[r * {{ fours }}u + {{ i }}u] = select(y[r * {{ fours }}u + {{ i }}u], vec4<f32>(-infinity), z == vec4<f32>(0.0));
                }
{% endif %}
{{ put_halves("weights", "at_weights + row * " ~ at_weight ~ "u + " ~ mine(fours) ~ i ~ "u", "exp2(y[r * " ~ fours ~ "u + " ~ i ~ "u] + vec4<f32>(up))", u) }}
{% endfor %}
            }
            {{ meet(u) }}
{% for t in range(tiles) %}
{% for run in range(runs) %}
{% for half in u.halves %}
            {{ load("w" ~ t ~ "_" ~ run ~ "_" ~ half, "A", "weights_" ~ half, "at_weights + " ~ (t * u.side * at_weight + run * u.side // 4) ~ "u", at_weight ~ "u", true, u) }}
{% endfor %}
{% endfor %}
{% endfor %}
{% for c in range(parts) %}
            {
{% if split %}
{% for t in range(tiles) %}
                var part{{ t }} = {{ zero(u) }};
{% endfor %}
{% endif %}
{% for run in range(runs) %}
                {
{% for half in u.halves %}
                    {{ load("v_" ~ half, "B", "values_" ~ half, "(t + " ~ run * u.side ~ "u) * " ~ at_row ~ "u + " ~ c * u.side // 4 ~ "u", at_row ~ "u", true, u) }}
{% endfor %}
{% for t in range(tiles) %}
{{ product("part" ~ t if split else "o" ~ t ~ "_" ~ c, "w" ~ t ~ "_" ~ run, "v", u) }}
{% endfor %}
                }
{% endfor %}
{% if split %}
                // sums of the units are cut off, not rounded: they are kept short
{% for t in range(tiles) %}
                {{ fold("o" ~ t ~ "_" ~ c, "part" ~ t, u) }}
{% endfor %}
{% endif %}
            }
{% endfor %}
            {{ meet(u) }}
        }
        workgroupBarrier();
    }
{{ each_row() }}
{% if sharers > 1 %}
            sum[r] += subgroupShuffleXor(sum[r], {{ rows }}u);
{% endif %}
            level[r] = exp2(level[r] - ROOM - top[r]){{ " * p.keep" if dropout }};
            query_scale[r] = select(1.0 / sum[r], 0.0, sum[r] == 0.0);
        }
{% for c in range(parts) %}
{% for t in range(tiles) %}
    {{ store("o" ~ t ~ "_" ~ c, "scores", "at_scores + " ~ t * u.side * at_score ~ "u", at_score ~ "u", u) }}
{% endfor %}
    {{ meet(u) }}
{{ each_row() }}
            if own + row < p.sq {
                let at_o = p.o_offset + b * p.o_batch + (own + row) * p.o_row + h * p.o_head;
{% for four in range(few) %}
                {
                    let column = {{ mine(few) }}{{ four }}u;
                    if column + {{ c * u.side // 4 }}u < {{ columns }}u {
                        write_out(at_o, (column + {{ c * u.side // 4 }}u) * 4u, {{ read("scores", "f32", "at_scores + row * " ~ at_score ~ "u + column", u) }} * query_scale[r] * level[r]);
                    }
                }
{% endfor %}
            }
        }
    {{ meet(u) }}
{% endfor %}
{% if lse %}
{{ each_row() }}
            if own + row < p.sq {
                lse[p.lse_offset + bh * p.sq + own + row] = log_sum_exp(top[r] / LOG2_E, sum[r]);
            }
        }
{% endif %}
    }
}
