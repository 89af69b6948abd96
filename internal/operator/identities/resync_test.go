package identities

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// undoer is an admission webhook, say, that puts back what is written to endpoints: the server says
// that all is well, and since nothing has changed it notifies no watch.
type undoer struct {
	on    atomic.Bool
	times atomic.Int64
}

func (u *undoer) wrap(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return wrapped(next, func(r *http.Request) (*http.Response, error) {
			if u.on.Load() && r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/ciliumendpoints/") {
				u.times.Add(1)
				if r.Body != nil {
					r.Body.Close()
				}
				r = r.Clone(r.Context())
				r.Method, r.Body, r.ContentLength, r.URL.RawQuery = http.MethodGet, nil, 0, ""
			}
			return next.RoundTrip(r)
		})
	})
}

// TestResync is the periodic reconciliation of all endpoints, "Operator changes 5" of CFP-27752:
// work whose effect was lost without a word is done at the next look at everything, and would not
// be done without it.
func TestResync(t *testing.T) {
	inEachStore(t, playResync)
}

func playResync(t *testing.T, env *controllers.Env, in func(*testCluster)) {
	for _, regular := range []bool{true, false} {
		t.Run(fmt.Sprintf("every so often %t", regular), func(t *testing.T) {
			tc := newTestCluster(t, env, in, func(tc *testCluster) {
				tc.control.Resync = time.Hour
				if regular {
					tc.control.Resync = 2 * time.Second
				}
			})
			u := &undoer{}
			u.on.Store(true)
			tc.operator(connection{api: u.wrap})
			tc.namespace("a", nil)
			p := tc.pod("a", "lost", map[string]string{"app": "web"}, onNode)
			e := tc.endpoint(p)
			tc.until(func() string {
				if u.times.Load() == 0 {
					return "the operator names no identity"
				}
				return ""
			})
			u.on.Store(false)
			if regular {
				tc.waitSynced()
				return
			}
			// What comes later is notified, and done; the other one stays as it is.
			q := tc.pod("a", "later", map[string]string{"app": "db"}, onNode)
			tc.endpoint(q)
			tc.until(func() string {
				if tc.state().idOfPod(q) == "" {
					return "the operator does not work"
				}
				return ""
			})
			if id := tc.state().idOfPod(p); id != "" {
				t.Errorf("the endpoint has %s: nothing was lost that only a look at everything finds", id)
			}
			// A leader that begins looks at everything, too.
			tc.operator()
			tc.waitSynced()
			var now v2.CiliumEndpoint
			if err := tc.Client.Get(tc.ctx, client.ObjectKeyFromObject(e), &now); err != nil || now.UID != e.UID {
				t.Errorf("the endpoint is another one: %v", err)
			}
		})
	}
}
