package endpointslices

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/api/v2alpha1"
)

var sliceName = regexp.MustCompile(`^ces-[bcdfghjklmnpqrstvwxyz2456789]{9}-[bcdfghjklmnpqrstvwxyz2456789]{5}$`)

// wrong is the oracle of the steady state: it says what is wrong with the slices that a server has,
// given what should be said of each endpoint. It looks at every slice for every endpoint, and knows
// nothing of the index.
func wrong(want map[key]*entry, have []v2alpha1.CiliumEndpointSlice, most int) string {
	var faults []string
	bad := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	for k, e := range want {
		var in []string
		for _, s := range have {
			for i := range s.Endpoints {
				if s.Namespace != k.Namespace || s.Endpoints[i].Name != k.Name {
					continue
				}
				in = append(in, s.Name)
				if !same(&s.Endpoints[i], e) {
					bad("slice %s says %+v of %s, which is %+v", s.Name, s.Endpoints[i], k, *e)
				}
			}
		}
		if len(in) != 1 {
			bad("%s is in the slices %v, not in one", k, in)
		}
	}
	for _, s := range have {
		if !sliceName.MatchString(s.Name) && !strings.HasPrefix(s.Name, "hand") {
			bad("the name %q", s.Name)
		}
		if len(s.Endpoints) > most || len(s.Endpoints) == 0 {
			bad("slice %s has %d endpoints, of at most %d", s.Name, len(s.Endpoints), most)
		}
		for _, e := range s.Endpoints {
			if want[key{Namespace: s.Namespace, Name: e.Name}] == nil {
				bad("slice %s has %s/%s, which should be in none", s.Name, s.Namespace, e.Name)
			}
			if e.IdentityID == 0 || e.Networking == nil {
				bad("slice %s has %s without identity or address", s.Name, e.Name)
			}
		}
	}
	if len(faults) > 5 {
		faults = append(faults[:5], fmt.Sprintf("and %d more", len(faults)-5))
	}
	return strings.Join(faults, "\n")
}

// placed returns what slices say: of each endpoint the number of slices that it is in.
func placed(have []v2alpha1.CiliumEndpointSlice) map[key]int {
	out := map[key]int{}
	for _, s := range have {
		for _, e := range s.Endpoints {
			out[key{Namespace: s.Namespace, Name: e.Name}]++
		}
	}
	return out
}

// vanished returns the endpoints that were in a slice before, are in none after, and are still
// wanted.
func vanished(before, after []v2alpha1.CiliumEndpointSlice, want func(key) bool) []key {
	now := placed(after)
	return slices.DeleteFunc(slices.SortedFunc(maps.Keys(placed(before)), compareKeys), func(k key) bool { return now[k] > 0 || !want(k) })
}
