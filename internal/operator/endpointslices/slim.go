package endpointslices

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
)

// Resolve reports which identity a pod in a namespace with these labels has: the canonical form of
// its labels, or an ID if these labels have one by rule. The operator's controller of identities
// must use the same.
type Resolve func(pod *corev1.Pod, namespace map[string]string) (canonical string, number int64, err error)

// slim makes entries out of Pods, CiliumIdentities and CiliumNodes. It is plain memory and not safe
// for concurrent use.
//
// A pod's entry never gets worse while something is awaited: a pod whose labels have changed keeps
// its identity until the new one exists.
type slim struct {
	resolve Resolve

	pods       map[key]*podState
	namespaces map[string]map[string]string
	inside     map[string]map[key]struct{} // pods by namespace
	nodes      map[string]nodeState
	onNode     map[string]map[key]struct{} // pods by node
	identities map[string]string           // labels of an ID, canonical
	numbers    map[string][]number         // by labels, the one that counts first
	wearers    map[string]map[key]struct{} // pods by labels

	dirty map[key]struct{}
}

type podState struct {
	pod       *corev1.Pod
	canonical string
	fixed     int64
}

type nodeState struct {
	ip      string
	encrypt int
}

// number is an identity that exists.
type number struct {
	id      int64
	created int64
}

func newSlim(resolve Resolve) *slim {
	return &slim{
		resolve: resolve, pods: map[key]*podState{}, namespaces: map[string]map[string]string{}, inside: map[string]map[key]struct{}{},
		nodes: map[string]nodeState{}, onNode: map[string]map[key]struct{}{}, identities: map[string]string{}, numbers: map[string][]number{},
		wearers: map[string]map[key]struct{}{}, dirty: map[key]struct{}{},
	}
}

// setMember adds k to, or removes it from, a set of sets.
func setMember(m map[string]map[key]struct{}, of string, k key, is bool) {
	switch set := m[of]; {
	case is && set == nil:
		m[of] = map[key]struct{}{k: {}}
	case is:
		set[k] = struct{}{}
	default:
		delete(set, k)
		if len(set) == 0 {
			delete(m, of)
		}
	}
}

func (s *slim) touch(set map[key]struct{}) {
	for k := range set {
		s.dirty[k] = struct{}{}
	}
}

func (s *slim) setPod(p *corev1.Pod) {
	k := key{Namespace: p.Namespace, Name: p.Name}
	if st := s.pods[k]; st != nil && k8s.Networked(p) && st.pod.UID == p.UID && st.pod.Spec.NodeName == p.Spec.NodeName && maps.Equal(st.pod.Labels, p.Labels) {
		st.pod = p
		s.dirty[k] = struct{}{}
		return
	}
	s.dropPod(k)
	if !k8s.Networked(p) {
		return
	}
	s.pods[k] = &podState{pod: p}
	setMember(s.inside, k.Namespace, k, true)
	setMember(s.onNode, p.Spec.NodeName, k, true)
	s.wear(k)
}

func (s *slim) dropPod(k key) {
	s.dirty[k] = struct{}{}
	st := s.pods[k]
	if st == nil {
		return
	}
	setMember(s.inside, k.Namespace, k, false)
	setMember(s.onNode, st.pod.Spec.NodeName, k, false)
	setMember(s.wearers, st.canonical, k, false)
	delete(s.pods, k)
}

// wear finds out which labels a pod's identity has now.
func (s *slim) wear(k key) {
	st := s.pods[k]
	setMember(s.wearers, st.canonical, k, false)
	st.canonical, st.fixed = "", 0
	if ns, known := s.namespaces[k.Namespace]; known {
		if text, id, err := s.resolve(st.pod, ns); err == nil { // if not, the identity controller reports why
			st.canonical, st.fixed = text, id
		}
	}
	setMember(s.wearers, st.canonical, k, true)
	s.dirty[k] = struct{}{}
}

func (s *slim) setNamespace(o *corev1.Namespace) {
	if old, known := s.namespaces[o.Name]; known && maps.Equal(old, o.Labels) {
		return
	}
	s.namespaces[o.Name] = o.Labels
	for k := range s.inside[o.Name] {
		s.wear(k)
	}
}

// dropNamespace forgets a namespace. Its pods go before it.
func (s *slim) dropNamespace(name string) { delete(s.namespaces, name) }

func (s *slim) setNode(o *v2.CiliumNode) {
	n := nodeState{encrypt: o.Spec.Encryption.Key}
	for _, a := range o.Spec.Addresses {
		ip, err := netip.ParseAddr(a.IP)
		if a.Type != "InternalIP" || err != nil {
			continue
		}
		if n.ip == "" || ip.Is4() && strings.Contains(n.ip, ":") { // IPv4 is preferred
			n.ip = ip.String()
		}
	}
	if s.nodes[o.Name] != n {
		s.nodes[o.Name] = n
		s.touch(s.onNode[o.Name])
	}
}

// dropNode drops a node. Entries of its pods stay until the pods go: the node's agent may be back
// before.
func (s *slim) dropNode(name string) { delete(s.nodes, name) }

func (s *slim) setIdentity(o *v2.CiliumIdentity) {
	id, err := strconv.ParseInt(o.Name, 10, 64)
	if err != nil || id <= 0 {
		return
	}
	s.dropIdentity(o.Name)
	text := canonical(o.SecurityLabels)
	if intact, sealed := identities.Intact(o); text == "" || sealed && !intact { // pods must not get an ID by an edit
		return
	}
	s.identities[o.Name] = text
	all := append(s.numbers[text], number{id, o.CreationTimestamp.Unix()})
	slices.SortFunc(all, func(x, y number) int { return cmp.Or(cmp.Compare(x.created, y.created), cmp.Compare(x.id, y.id)) })
	s.numbers[text] = all
	s.touch(s.wearers[text])
}

// canonical returns the canonical form of an identity's labels, "" if they are no labels.
func canonical(m map[string]string) string {
	set, err := identities.ParseSecurityLabels(m)
	if err != nil {
		return ""
	}
	return set.KVString()
}

func (s *slim) dropIdentity(name string) {
	text, known := s.identities[name]
	if !known {
		return
	}
	delete(s.identities, name)
	id, _ := strconv.ParseInt(name, 10, 64)
	left := slices.DeleteFunc(s.numbers[text], func(n number) bool { return n.id == id })
	if len(left) == 0 {
		delete(s.numbers, text)
	} else {
		s.numbers[text] = left
	}
	s.touch(s.wearers[text])
}

// apply notifies the index of what has changed.
func (s *slim) apply(b *index) {
	for _, k := range slices.SortedFunc(maps.Keys(s.dirty), compareKeys) {
		b.set(k, s.entry(k, b.known(k)))
	}
	clear(s.dirty)
}

// entry returns the entry of a pod; before is its present one.
func (s *slim) entry(k key, before *entry) *entry {
	st := s.pods[k]
	if st == nil || st.pod.Spec.NodeName == "" || len(st.pod.Status.PodIPs) == 0 {
		return nil
	}
	p := st.pod
	if before != nil && types.UID(before.PodUID) != p.UID { // of another pod of that name
		before = nil
	}
	e := &entry{Name: p.Name, PodUID: string(p.UID), ServiceAccount: p.Spec.ServiceAccountName, NamedPorts: namedPorts(p)}
	switch ids := s.numbers[st.canonical]; {
	case st.fixed != 0:
		e.IdentityID = st.fixed
	case len(ids) > 0:
		e.IdentityID = ids[0].id
	case before != nil:
		e.IdentityID = before.IdentityID
	default:
		return nil
	}
	node, known := s.nodes[p.Spec.NodeName]
	switch {
	case known && node.ip != "":
		e.Encryption.Key = node.encrypt
	case before != nil && before.Networking != nil:
		node.ip, e.Encryption = before.Networking.NodeIP, before.Encryption
	default:
		return nil
	}
	pair := &v2.AddressPair{}
	for _, ip := range p.Status.PodIPs {
		switch a, err := netip.ParseAddr(ip.IP); {
		case err != nil:
		case a.Unmap().Is4():
			pair.IPv4 = a.Unmap().String()
		default:
			pair.IPv6 = a.String()
		}
	}
	if *pair == (v2.AddressPair{}) {
		return nil
	}
	e.Networking = &v2.EndpointNetworking{NodeIP: node.ip, Addressing: []*v2.AddressPair{pair}}
	return e
}

// namedPorts returns the ports of a pod that have names, as an agent would report them.
func namedPorts(p *corev1.Pod) []v2.NamedPort {
	var out []v2.NamedPort
	containers := slices.Clone(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers { // one that keeps running with the others
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, port := range c.Ports {
			if port.Name == "" || port.ContainerPort < 1 || port.ContainerPort > 0xFFFF {
				continue
			}
			protocol := cmp.Or(string(port.Protocol), string(corev1.ProtocolTCP))
			out = append(out, v2.NamedPort{Name: port.Name, Port: int(port.ContainerPort), Protocol: protocol})
		}
	}
	slices.SortFunc(out, func(a, b v2.NamedPort) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port))
	})
	return out
}
