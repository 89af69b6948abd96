package identities

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestEventOfClaim: a pod whose endpoint claims the ID of other pods shows that it was refused.
func TestEventOfClaim(t *testing.T) {
	inEachStore(t, playEventOfClaim)
}

func playEventOfClaim(t *testing.T, env *controllers.Env, in func(*testCluster)) {
	tc := newTestCluster(t, env, in)
	tc.operator()
	tc.namespace("claims", nil)
	web := tc.pod("claims", "web", map[string]string{"app": "web"}, onNode)
	tc.endpoint(web)
	number := tc.waitSynced().idOfPod(web)
	id, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	thief := tc.pod("claims", "thief", map[string]string{"app": "thief"}, onNode)
	_, claim := tc.identityOf(thief, identity.ID(id))
	tc.endpoint(thief, claim)
	if now := tc.waitSynced().idOfPod(thief); now == number {
		t.Errorf("the claim of %s was believed", number)
	}
	tc.until(func() string {
		var list corev1.EventList
		if err := tc.Client.List(tc.ctx, &list, client.InNamespace("claims")); err != nil {
			return err.Error()
		}
		for _, ev := range list.Items {
			if ev.Reason != "IdentityClaimRefused" {
				continue
			}
			if ev.InvolvedObject.UID != thief.UID || !strings.Contains(ev.Message, "ID "+number) {
				t.Errorf("the Event is %+v", ev)
			}
			return ""
		}
		return fmt.Sprintf("no event in %d", len(list.Items))
	})
}
