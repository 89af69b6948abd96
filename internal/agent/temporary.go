package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/agent/component"
	"github.com/hawser-net/hawser/internal/agent/identities"
	"github.com/hawser-net/hawser/internal/agent/podevents"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/retry"
)

// replaceInterval is how often endpoints with temporary identities are looked at although nothing
// was observed.
const replaceInterval = 5 * time.Second

// propagationDelay is how long other nodes have to observe an identity before a pod whose labels
// have changed begins to use it. It is many times what an API server needs to notify all its
// clients.
const propagationDelay = time.Second

// partTemporary is the name under which the status shows endpoints that wait for their identity.
const partTemporary = "identities"

// replacer gives endpoints with temporary identities their own.
type replacer struct {
	log        *slog.Logger
	lifecycle  *endpoint.Lifecycle
	identities *identities.Identities
	registry   *endpoint.Registry
	components *component.Statuses
	events     *podevents.Writer // nil outside of Kubernetes
	inForce    *latch
}

// run does so as soon as these are known, until ctx ends.
func (s *replacer) run(ctx context.Context) error {
	if s.inForce.wait(ctx) != nil {
		return nil
	}
	var writer sync.WaitGroup
	writer.Go(func() { s.events.Run(ctx) })
	defer writer.Wait() // all below return when ctx has ended
	for {
		var waiting endpoint.Waiting
		if s.identities.Temporary() > 0 {
			var err error
			waiting, err = s.lifecycle.ReplaceTemporary(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				s.log.Warn("some endpoints keep temporary identities for now", "error", err)
			}
		}
		s.report(waiting.Endpoints)
		s.events.Look(s.registry.List())
		again := replaceInterval
		if waiting.Next > 0 {
			again = min(again, waiting.Next)
		}
		if !retry.SleepUnless(ctx, again, s.identities.Arrived) {
			return nil
		}
	}
}

// report shows in the status how many endpoints have temporary identities.
func (s *replacer) report(n int) {
	if n == 0 {
		s.components.Set(partTemporary, rest.StateOk, "all endpoints have their identity")
		return
	}
	s.components.Set(partTemporary, rest.StateWarning, fmt.Sprintf(
		"%d endpoints wait for an identity and have a temporary one: their own policies are enforced, others see them as %s or as before", n, identity.Init))
}

// partEdited is the name under which the status shows edited identities.
const partEdited = "edited-identities"

// edited returns the IDs whose stored labels differ from those that they stand for.
func (t *tables) edited() []allocator.ID {
	list := t.identities.Edited()
	if t.objects != nil {
		list = append(list, t.objects.Edited()...)
		slices.Sort(list)
	}
	return slices.Compact(list)
}

// reportEdited shows edited identities in the status.
func (t *tables) reportEdited() {
	list := t.edited()
	if len(list) == 0 {
		t.components.Set(partEdited, rest.StateOk, "all identities are as they were made")
		return
	}
	shown := list[:min(len(list), 10)]
	t.components.Set(partEdited, rest.StateWarning, fmt.Sprintf(
		"the labels of %d identities were edited by hand, among them %v: on this node they keep their meaning; restore the labels that the log names", len(list), shown))
}

// partPolicyLabels is the name under which the status shows policies that select by labels which no
// identity has.
const partPolicyLabels = "policy-labels"

// reportLeftOut shows in the status which policies select by labels that make no identities.
func (t *tables) reportLeftOut(keys map[policy.Owner][]string) {
	if len(keys) == 0 {
		t.components.Set(partPolicyLabels, rest.StateOk, "policies select by labels that make identities")
		return
	}
	first := slices.Min(slices.Collect(maps.Keys(keys)))
	t.components.Set(partPolicyLabels, rest.StateWarning, fmt.Sprintf("%d policies select by labels that make no identities, so that to policies no pod has them, among them %s by %s; "+
		"select by others, or have these make identities (--labels, --label-prefix-file); the log has all", len(keys), first, strings.Join(keys[first], ", ")))
}

// partPolicyPrefixes is the name under which the status shows policies whose prefixes are beyond
// the share of their namespace.
const partPolicyPrefixes = "policy-prefixes"

// reportBeyond shows in the status whose prefixes are not in force.
func (t *tables) reportBeyond(list []policy.Owner) {
	if len(list) == 0 {
		t.components.Set(partPolicyPrefixes, rest.StateOk, "all prefixes that policies name are in force")
		return
	}
	t.components.Set(partPolicyPrefixes, rest.StateWarning, fmt.Sprintf("the prefixes of %d policies allow nothing, and deny everything, among them those of %s: "+
		"the policies of their namespace name too many (--policy-namespace-prefix-max)", len(list), list[0]))
}
