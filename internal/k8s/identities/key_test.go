package identities_test

import (
	"testing"

	"github.com/hawser-net/hawser/internal/k8s/identities"
)

// TestKeyOfSeveralSources: an object has labels of one key with several sources, of which a set of
// labels has one. Which that is must not be each reader's chance: the object means nothing.
func TestKeyOfSeveralSources(t *testing.T) {
	t.Parallel()
	for _, m := range []map[string]string{
		{"k8s:app": "web", "any:app": "db"}, {"k8s:host": "", "reserved:host": ""}, {"app": "web", "unspec:app": "db"},
	} {
		for range 50 { // maps have no order
			if set, err := identities.ParseSecurityLabels(m); err == nil {
				t.Errorf("%v is %s", m, set)
				break
			}
		}
	}
	if set, err := identities.ParseSecurityLabels(map[string]string{"k8s:app": "web", "any:tier": "db"}); err != nil || len(set) != 2 {
		t.Errorf("two keys are %s, %v", set, err)
	}
}
