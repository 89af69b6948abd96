package identity

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/labels"
)

func TestReserved(t *testing.T) {
	t.Parallel()
	names := "unknown host world unmanaged health init remote-node kube-apiserver ingress world-ipv4 world-ipv6 " +
		"aggregate-cluster aggregate-cluster-mesh aggregate-world aggregate-remote-node"
	for i, name := range strings.Fields(names) {
		id := ID(i)
		if id.String() != name || !id.IsReserved() || id.IsLocal() {
			t.Errorf("%d is %s", i, id)
		}
		set, ok := ReservedLabels(id)
		if !ok || !set.HasReserved(name) {
			t.Errorf("%s has labels %v", name, set)
		}
		if back, ok := ReservedID(set); !ok || back != id {
			t.Errorf("%v is %v, %v", set, back, ok)
		}
		if back, err := Parse(name); err != nil || back != id {
			t.Errorf("Parse(%s) = %v, %v", name, back, err)
		}
	}
	if set, _ := ReservedLabels(KubeAPIServer); set.String() != "reserved:kube-apiserver,reserved:remote-node" {
		t.Errorf("kube-apiserver has labels %v", set)
	}
	if id, ok := ReservedID(labels.NewSet(labels.Reserved("kube-apiserver"))); !ok || id != KubeAPIServer {
		t.Errorf("kube-apiserver alone is %v, %v", id, ok)
	}
	if _, ok := ReservedID(labels.NewSet(labels.New("k8s", "host", ""))); ok {
		t.Error("a label of another source is taken for reserved")
	}
	if _, ok := ReservedLabels(15); ok {
		t.Error("15 is taken for reserved")
	}
	if ID(300).String() != "300" || ID(300).IsReserved() || !ID(255).IsReserved() {
		t.Error("300 or 255 is wrong")
	}
	for _, bad := range []string{"", "-1", "4294967296", "hosts"} {
		if id, err := Parse(bad); err == nil {
			t.Errorf("Parse(%q) = %v", bad, id)
		}
	}
}

func TestScopes(t *testing.T) {
	t.Parallel()
	for id, want := range map[ID][3]bool{ // global, local, temporary
		300:        {true, false, false},
		0xff0001:   {true, false, false},
		1<<24 + 1:  {false, true, false},
		2<<24 + 1:  {false, true, false},
		0x01010000: {false, true, true},
		0x010103ff: {false, true, true},
		0x01010400: {false, true, false},
		65535:      {true, false, false},
	} {
		if got := [3]bool{id.IsGlobal(), id.IsLocal(), id.IsTemporary()}; got != want {
			t.Errorf("%#x: global, local, temporary = %v, want %v", uint32(id), got, want)
		}
	}
}

func TestRange(t *testing.T) {
	t.Parallel()
	tests := []struct {
		cluster, limit uint32
		first, last    ID
		bad            bool
	}{
		{0, 255, 256, 65535, false},
		{0, 0, 256, 65535, false},
		{0, 511, 256, 32767, false},
		{1, 255, 65536, 131071, false},
		{255, 255, 255 << 16, 1<<24 - 1, false},
		{1, 511, 32768, 65535, false},
		{511, 511, 511 << 15, 1<<24 - 1, false},
		{256, 255, 0, 0, true},
		{512, 511, 0, 0, true},
		{1, 100, 0, 0, true},
	}
	for _, tt := range tests {
		first, last, err := Range(tt.cluster, tt.limit)
		if first != tt.first || last != tt.last || (err != nil) != tt.bad {
			t.Errorf("Range(%d, %d) = %d, %d, %v", tt.cluster, tt.limit, first, last, err)
		}
		if err == nil && (first.ClusterID(tt.limit) != tt.cluster || last.ClusterID(tt.limit) != tt.cluster) {
			t.Errorf("Range(%d, %d): the ends belong to clusters %d and %d", tt.cluster, tt.limit, first.ClusterID(tt.limit), last.ClusterID(tt.limit))
		}
	}
	if ID(1<<24+70000).ClusterID(255) != 0 {
		t.Error("a local ID has a cluster")
	}
}

func TestFixed(t *testing.T) {
	t.Parallel()
	f, err := ParseFixed([]string{"128=kv-store,129=dns", "255=last"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Fixed{128: "kv-store", 129: "dns", 255: "last"}, f); diff != "" {
		t.Error(diff)
	}
	if set, ok := f.Labels(128); !ok || set.String() != "reserved:kv-store" {
		t.Errorf("128 has labels %v", set)
	}
	pod := func(v string) labels.Set { return labels.NewSet(labels.New("k8s", labels.KeyFixedIdentity, v)) }
	if id, found, err := f.ForPod(pod("dns")); id != 129 || !found || err != nil {
		t.Errorf("got %v, %v, %v", id, found, err)
	}
	if _, found, err := f.ForPod(nil); found || err != nil {
		t.Error("a pod without the label has a fixed identity")
	}
	if _, _, err := f.ForPod(pod("nope")); err == nil {
		t.Error("a name that is not mapped is no error")
	}
	for _, bad := range []string{"127=a", "256=a", "x=a", "128", "128=", "128=host", "128=cluster", "128=a;b", "128=a,128=b", "128=a,129=a", "-1=a"} {
		if f, err := ParseFixed([]string{bad}); err == nil {
			t.Errorf("%q is accepted as %v", bad, f)
		}
	}
}

func TestWellKnown(t *testing.T) {
	t.Parallel()
	list := WellKnownIdentities("default", "kube-system")
	var ids []ID
	for _, w := range list {
		ids = append(ids, w.ID)
		if err := w.Labels.Validate(); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(ids, []ID{102, 103, 104, 105, 106, 110, 111, 112, 113, 114}) {
		t.Errorf("IDs are %v", ids)
	}
	set, err := labels.ParseSet([]string{
		"k8s:k8s-app=kube-dns", "k8s:io.kubernetes.pod.namespace=kube-system",
		"k8s:io.cilium.k8s.policy.serviceaccount=coredns", "k8s:io.cilium.k8s.policy.cluster=default",
	})
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := LookupWellKnown(list, set); !ok || id != 104 {
		t.Errorf("coredns is %v, %v", id, ok)
	}
	named := set.With(labels.New("k8s", labels.KeyNamespaceLabels+".kubernetes.io/metadata.name", "kube-system"))
	if id, ok := LookupWellKnown(list, named); !ok || id != 112 {
		t.Errorf("coredns with its namespace's name is %v, %v", id, ok)
	}
	if _, ok := LookupWellKnown(list, set.With(labels.New("k8s", "x", "y"))); ok {
		t.Error("a label more is still well-known")
	}
}

func TestCIDRLabels(t *testing.T) {
	t.Parallel()
	tests := []struct {
		prefix string
		dual   bool
		want   string
	}{
		{"10.0.0.0/8", false, "cidr:10.0.0.0/8,reserved:world"},
		{"10.1.2.3/8", true, "cidr:10.0.0.0/8,reserved:world-ipv4"},
		{"2001:db8::/32", true, "cidr:2001-db8--0/32,reserved:world-ipv6"},
		{"::1/128", true, "cidr:0--1/128,reserved:world-ipv6"},
		{"0.0.0.0/0", true, "reserved:world-ipv4"},
		{"::/0", true, "reserved:world-ipv6"},
		{"::/0", false, "reserved:world"},
		{"::/1", true, "cidr:0--0/1,reserved:world-ipv6"},
	}
	for _, tt := range tests {
		p := netip.MustParsePrefix(tt.prefix)
		set := CIDRLabels(p, tt.dual)
		if set.String() != tt.want {
			t.Errorf("%s has labels %v, want %s", p, set, tt.want)
		}
		if err := set.Validate(); err != nil {
			t.Error(err)
		}
		back, ok := CIDRPrefix(set)
		if ok != (p.Bits() > 0) || ok && back != p.Masked() {
			t.Errorf("%v comes back as %v, %v", set, back, ok)
		}
	}
	if CIDRLabels(netip.Prefix{}, true) != nil {
		t.Error("an invalid prefix has labels")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		var b [16]byte
		for i := range b {
			if rng.IntN(2) == 0 {
				b[i] = byte(rng.Uint32())
			}
		}
		p, err := netip.AddrFrom16(b).Prefix(1 + rng.IntN(128))
		if err != nil || p.Addr().Is4In6() {
			continue
		}
		if back, ok := CIDRPrefix(CIDRLabels(p, true)); !ok || back != p {
			t.Fatalf("%v comes back as %v, %v", p, back, ok)
		}
	}
}

func TestEntities(t *testing.T) {
	t.Parallel()
	local := labels.NewSet(labels.New("k8s", labels.KeyCluster, "c1"))
	remote := labels.NewSet(labels.New("k8s", labels.KeyCluster, "c2"))
	forged := labels.NewSet(labels.New("cni", labels.KeyCluster, "c1"))
	cidr := CIDRLabels(netip.MustParsePrefix("10.0.0.0/8"), true)
	host, _ := ReservedLabels(Host)
	api, _ := ReservedLabels(KubeAPIServer)
	tests := []struct {
		entity Entity
		is     []labels.Set
		not    []labels.Set
	}{
		{EntityAll, []labels.Set{local, remote, cidr, host, nil}, nil},
		{EntityNone, nil, []labels.Set{local, remote, cidr, host, nil}},
		{EntityWorld, []labels.Set{cidr}, []labels.Set{local, host, api}},
		{EntityWorldIPv4, []labels.Set{cidr}, []labels.Set{local}},
		{EntityWorldIPv6, nil, []labels.Set{cidr}},
		{EntityCluster, []labels.Set{local, host, api}, []labels.Set{remote, cidr, forged}},
		{EntityClusterMesh, []labels.Set{local, remote, host}, []labels.Set{cidr, forged}},
		{EntityHost, []labels.Set{host}, []labels.Set{api, local}},
		{EntityRemoteNode, []labels.Set{api}, []labels.Set{host}},
		{EntityKubeAPIServer, []labels.Set{api}, []labels.Set{host}},
		{"nonsense", nil, []labels.Set{local, host, cidr}},
	}
	for _, tt := range tests {
		for _, s := range tt.is {
			if !tt.entity.Is(s, "c1") {
				t.Errorf("%v is not %s", s, tt.entity)
			}
		}
		for _, s := range tt.not {
			if tt.entity.Is(s, "c1") {
				t.Errorf("%v is %s", s, tt.entity)
			}
		}
	}
	for _, e := range Entities() {
		if _, _, _, ok := EntityMembers(e); !ok {
			t.Errorf("%s is not known", e)
		}
	}
}

func prefixLabels(i int) labels.Set {
	return CIDRLabels(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32), true)
}

func TestLocalAllocator(t *testing.T) {
	t.Parallel()
	a, err := NewLocalAllocator(LocalScope)
	if err != nil {
		t.Fatal(err)
	}
	one, isNew, err := a.Allocate(prefixLabels(1))
	if err != nil || !isNew || one != LocalScope+1 {
		t.Fatalf("got %v, %v, %v", one, isNew, err)
	}
	if again, isNew, _ := a.Allocate(prefixLabels(1)); again != one || isNew {
		t.Fatalf("the same labels give %v, %v", again, isNew)
	}
	if a.Release(one) {
		t.Error("gone with a reference left")
	}
	if !a.Release(one) || a.Release(one) || a.Len() != 0 {
		t.Error("the last release is not the last")
	}
	// An ID is in quarantine: the next one is another.
	if next, _, _ := a.Allocate(prefixLabels(1)); next == one {
		t.Error("an ID is reused at once")
	}
	if _, _, err := a.Allocate(nil); err == nil {
		t.Error("no labels get an ID")
	}
	if _, err := NewLocalAllocator(GlobalScope); err == nil {
		t.Error("the global scope is accepted")
	}
	// Temporary identities are never given out.
	a.next = MinTemporary
	if id, _, _ := a.Allocate(prefixLabels(2)); id != MaxTemporary+1 {
		t.Errorf("got %#x beside the temporary identities", uint32(id))
	}
	// The search wraps at the end of the scope.
	a.next = LocalScope | 0xffffff
	last, _, _ := a.Allocate(prefixLabels(3))
	first, _, _ := a.Allocate(prefixLabels(4))
	if last != LocalScope|0xffffff || first.Scope() != LocalScope || first == LocalScope {
		t.Errorf("got %#x, %#x", uint32(last), uint32(first))
	}
}

func TestLocalAllocatorExhausted(t *testing.T) {
	t.Parallel()
	a, err := NewLocalAllocator(LocalScope)
	if err != nil {
		t.Fatal(err)
	}
	a.last = MaxTemporary + 10 // a small scope
	n := 0
	for ; ; n++ {
		id, _, err := a.Allocate(prefixLabels(n))
		if err != nil {
			if !errors.Is(err, ErrExhausted) {
				t.Fatal(err)
			}
			break
		}
		if id.IsTemporary() || id > a.last {
			t.Fatalf("got %#x", uint32(id))
		}
	}
	if want := 0xffff + 10; n != want {
		t.Errorf("%d IDs were given out, want %d", n, want)
	}
}

func TestCheckpoint(t *testing.T) {
	t.Parallel()
	a, _ := NewLocalAllocator(LocalScope)
	ids := map[int]ID{}
	for i := range 10 {
		ids[i], _, _ = a.Allocate(prefixLabels(i))
	}
	a.Release(ids[0])
	data, err := json.Marshal(a.Export())
	if err != nil {
		t.Fatal(err)
	}
	var cp Checkpoint
	if err := json.Unmarshal(data, &cp); err != nil {
		t.Fatal(err)
	}
	b, _ := NewLocalAllocator(LocalScope)
	if err := b.Import(cp); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cp, b.Export()); diff != "" {
		t.Error(diff)
	}
	if id, isNew, _ := b.Allocate(prefixLabels(5)); id != ids[5] || isNew {
		t.Errorf("restored labels get %v, want %v", id, ids[5])
	}
	if b.Release(ids[6]) {
		t.Error("a restored ID without references is released")
	}
	gone := b.DropRestored()
	if len(gone) != 8 || slices.Contains(gone, ids[5]) || b.Len() != 1 {
		t.Errorf("dropped %v", gone)
	}
	if id, _, _ := b.Allocate(prefixLabels(100)); slices.Contains(gone, id) {
		t.Error("a dropped ID is reused at once")
	}
	if err := b.Import(cp); err == nil {
		t.Error("an allocator in use takes a checkpoint")
	}
	// Faulty entries are left out, good ones stay.
	c, _ := NewLocalAllocator(LocalScope)
	err = c.Import(Checkpoint{Scope: LocalScope, Next: 7, Identities: []CheckpointEntry{
		{LocalScope + 1, prefixLabels(1)}, {LocalScope + 1, prefixLabels(2)}, {LocalScope + 2, prefixLabels(1)},
		{300, prefixLabels(3)}, {MinTemporary, prefixLabels(4)}, {LocalScope + 3, nil}, {LocalScope, prefixLabels(5)},
	}})
	if err == nil || c.Len() != 1 || strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("%d entries were taken: %v", c.Len(), err)
	}
	if err := c.Import(Checkpoint{Scope: RemoteNodeScope}); err == nil {
		t.Error("a checkpoint of another scope is taken")
	}
}

// TestLocalAllocatorModel: random calls agree with a map.
func TestLocalAllocatorModel(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	a, _ := NewLocalAllocator(LocalScope)
	refs, ids := map[int]int{}, map[int]ID{}
	for range 20_000 {
		i := rng.IntN(50)
		if rng.IntN(2) == 0 {
			id, isNew, err := a.Allocate(prefixLabels(i))
			if err != nil || isNew != (refs[i] == 0) || refs[i] > 0 && id != ids[i] {
				t.Fatalf("Allocate = %v, %v, %v with %d references on %v", id, isNew, err, refs[i], ids[i])
			}
			refs[i]++
			ids[i] = id
			continue
		}
		gone := a.Release(ids[i])
		if gone != (refs[i] == 1) {
			t.Fatalf("Release = %v with %d references", gone, refs[i])
		}
		refs[i] = max(0, refs[i]-1)
		if set, ok := a.Labels(ids[i]); ok != (refs[i] > 0) || ok && !set.Equal(prefixLabels(i)) {
			t.Fatalf("Labels = %v, %v", set, ok)
		}
	}
}

// FuzzImport: no checkpoint from the disk crashes the allocator or breaks it.
func FuzzImport(f *testing.F) {
	f.Add([]byte(`{"scope":16777216,"next":16777220,"identities":[{"id":16777217,"labels":["cidr:10.0.0.0/8"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var cp Checkpoint
		if json.Unmarshal(data, &cp) != nil {
			return
		}
		a, _ := NewLocalAllocator(LocalScope)
		_ = a.Import(cp) // faults are reported; what matters is what was taken
		id, _, err := a.Allocate(labels.NewSet(labels.New("k8s", "fresh", "x")))
		if err != nil || id.Scope() != LocalScope || id.IsTemporary() || id == LocalScope {
			t.Fatalf("got %#x, %v", uint32(id), err)
		}
	})
}

// ClusterID returns the cluster that a global ID belongs to; 0 for reserved and local IDs.
// maxConnected is 255 (or 0, which means the same) or 511; anything else counts as 255.
func (id ID) ClusterID(maxConnected uint32) uint32 {
	if !id.IsGlobal() {
		return 0
	}
	shift, err := clusterShift(maxConnected)
	if err != nil {
		shift = 16
	}
	return uint32(id) >> shift
}
