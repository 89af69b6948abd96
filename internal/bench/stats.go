package bench

import (
	"cmp"
	"slices"
	"time"
)

// quantile returns the q-th quantile of values, which it sorts; 0 if there are none.
func quantile[T cmp.Ordered](values []T, q float64) T {
	var zero T
	if len(values) == 0 {
		return zero
	}
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}

func median[T cmp.Ordered](values []T) T { return quantile(slices.Clone(values), 0.5) }

func p99[T cmp.Ordered](values []T) T { return quantile(slices.Clone(values), 0.99) }

// ms and us are durations as figures.
func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }
func us(d time.Duration) float64 { return d.Seconds() * 1e6 }

// pairs are two things measured in turn, round by round.
type pairs struct{ value, base []float64 }

func (p *pairs) add(value, base float64) {
	p.value, p.base = append(p.value, value), append(p.base, base)
}

// ratio is the median of the rounds' ratios: neighbours on the machine disturb whole rounds.
func (p *pairs) ratio() float64 {
	var all []float64
	for i, v := range p.value {
		if p.base[i] > 0 {
			all = append(all, v/p.base[i])
		}
	}
	return median(all)
}

// fill puts the pairs' medians into a figure.
func (p *pairs) fill(f Figure) Figure {
	f.Value, f.Baseline, f.Ratio, f.Samples = median(p.value), median(p.base), p.ratio(), len(p.value)
	return f
}
