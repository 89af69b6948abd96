package clustermesh_test

import (
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/clustermesh"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// TestCheckOwner: a store that describes another cluster, whichever description is older, is not
// written to; one that mirrors others is.
func TestCheckOwner(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name         string
		descriptions []string // name and value, the oldest first
		refused      string
	}{
		{"none", nil, ""},
		{"its own", []string{"east", `{"id":1}`}, ""},
		{"with mirrors of others", []string{"west", `{"id":2,"capabilities":{"cached":true}}`, "east", `{"id":1}`}, ""},
		{"another's", []string{"west", `{"id":2}`}, "west"},
		{"another's, and then its own", []string{"west", `{"id":2}`, "east", `{"id":1}`}, "west"},
		{"its own, and then another's", []string{"east", `{"id":1}`, "west", `{"id":2}`}, "west"},
		{"what cannot be read", []string{"west", `{`, "east", `{"id":1}`}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := kvstore.NewMemory().Client()
			defer store.Close()
			for i := 0; i < len(tt.descriptions); i += 2 {
				key := kvstore.JoinKey(storekeys.ClusterConfigPrefix, tt.descriptions[i])
				if err := kvstore.Put(t.Context(), store, key, []byte(tt.descriptions[i+1]), kvstore.Permanent); err != nil {
					t.Fatal(err)
				}
			}
			err := clustermesh.CheckOwner(t.Context(), store, "east")
			if (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), kvstore.JoinKey(storekeys.ClusterConfigPrefix, tt.refused)) {
				t.Errorf("east: %v, want an error about %q", err, tt.refused)
			}
		})
	}
}
