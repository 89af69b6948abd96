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

// TestEventOfClaim: a pod whose endpoint claims the number of other pods shows that it was refused.
func TestEventOfClaim(t *testing.T) {
	homes(t, playEventOfClaim)
}

func playEventOfClaim(t *testing.T, env *controllers.Env, in func(*town)) {
	tn := newTown(t, env, in)
	tn.operator()
	tn.namespace("claims", nil)
	web := tn.pod("claims", "web", map[string]string{"app": "web"}, onNode)
	tn.endpoint(web)
	number := tn.settled().numberOfPod(web)
	id, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	thief := tn.pod("claims", "thief", map[string]string{"app": "thief"}, onNode)
	_, claim := tn.identityOf(thief, identity.ID(id))
	tn.endpoint(thief, claim)
	if now := tn.settled().numberOfPod(thief); now == number {
		t.Errorf("the claim of %s was believed", number)
	}
	tn.until(func() string {
		var list corev1.EventList
		if err := tn.Client.List(tn.ctx, &list, client.InNamespace("claims")); err != nil {
			return err.Error()
		}
		for _, ev := range list.Items {
			if ev.Reason != "IdentityClaimRefused" {
				continue
			}
			if ev.InvolvedObject.UID != thief.UID || !strings.Contains(ev.Message, "number "+number) {
				t.Errorf("the Event is %+v", ev)
			}
			return ""
		}
		return fmt.Sprintf("no event in %d", len(list.Items))
	})
}
