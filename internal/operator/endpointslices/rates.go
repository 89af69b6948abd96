package endpointslices

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	// mostLimit and mostBurst bound what can be configured: every node observes every write.
	mostLimit = 50
	mostBurst = 100
)

// Rate limits writes in a cluster of a size.
type Rate struct {
	// Nodes is the size from which on it counts.
	Nodes int `json:"nodes"`
	// Limit is how many writes a second there may be, Burst how many at once.
	Limit float64 `json:"limit"`
	Burst int     `json:"burst"`
}

// Rates are limits for clusters of all sizes, the smallest first.
type Rates []Rate

// ParseRates reads a JSON list of limits. What is above what is allowed counts as that.
func ParseRates(text string) (Rates, error) {
	var rates Rates
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&rates); err != nil {
		return nil, fmt.Errorf(`%.80q is no list like [{"nodes":0,"limit":10,"burst":20}]: %w`, text, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%.80q goes on after the list", text)
	}
	if len(rates) == 0 {
		return nil, errors.New("the list is empty")
	}
	slices.SortFunc(rates, func(x, y Rate) int { return cmp.Compare(x.Nodes, y.Nodes) })
	for i, r := range rates {
		switch {
		case r.Nodes < 0:
			return nil, fmt.Errorf("a cluster cannot have %d nodes", r.Nodes)
		case i > 0 && rates[i-1].Nodes == r.Nodes:
			return nil, fmt.Errorf("there are two entries for %d nodes", r.Nodes)
		case !(r.Limit > 0) || r.Burst < 1:
			return nil, fmt.Errorf("the entry for %d nodes allows no writes: limit %g and burst %d must be above 0", r.Nodes, r.Limit, r.Burst)
		}
		rates[i].Limit, rates[i].Burst = min(r.Limit, mostLimit), min(r.Burst, mostBurst)
	}
	return rates, nil
}

// For returns the limit for a cluster of a size: the last entry that begins there or before; for
// smaller clusters than any, the first.
func (r Rates) For(nodes int) Rate {
	out := r[0]
	for _, e := range r {
		if e.Nodes <= nodes {
			out = e
		}
	}
	return out
}
