package endpoints

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
)

// TestLearned: how old another node's object was is told once, when it names an identity of its own for
// the first time, and not of what was there before.
func TestLearned(t *testing.T) {
	t.Parallel()
	var told []time.Duration
	e := &Endpoints{
		cfg: Config{Hosts: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Accept: func(identity.ID) error { return nil },
			Learned: func(age time.Duration) { told = append(told, age) }, Log: slog.New(slog.DiscardHandler)},
		book: newBook(ipcache.New(), slog.New(slog.DiscardHandler)), began: time.Now().Add(-time.Minute),
	}
	say := func(name string, id int64, age time.Duration, want int) {
		t.Helper()
		o := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "1", CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}}
		o.Status.Identity = &v2.EndpointIdentity{ID: id}
		o.Status.Networking = &v2.EndpointNetworking{NodeIP: "192.0.2.2", Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1"}}}
		e.heard(o)
		if len(told) != want {
			t.Errorf("%s with identity %d: told %v, want %d", name, id, told, want)
		}
	}
	say("new", int64(identity.Init), 3*time.Second, 0)
	say("new", 1000, 5*time.Second, 1)
	say("new", 1001, 6*time.Second, 1)
	say("old", 1000, time.Hour, 1)
	say("ahead", 1000, -time.Minute, 2) // by a clock that is ahead
	if len(told) == 2 && (told[0] < 5*time.Second || told[0] > 30*time.Second || told[1] != 0) {
		t.Errorf("ages: %v", told)
	}
}
