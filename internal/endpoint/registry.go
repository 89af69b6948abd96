package endpoint

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
)

// Registry is the table of the endpoints on this node: rows by ID, with an index for every way in
// which a client can name one. Only the Lifecycle writes. It is safe for concurrent use.
//
// What always holds: no two rows share an ID, a CNI attachment, an address or an interface.
type Registry struct {
	mu           sync.RWMutex
	rows         map[uint16]Endpoint
	byAttachment map[string]uint16
	byAddr       map[netip.Addr]uint16
	byIfName     map[string]uint16
	byPod        map[string]map[uint16]struct{} // a pod may have several interfaces
	byContainer  map[string]map[uint16]struct{}
	next         uint16
	past         []Endpoint // the last rows that were removed, oldest first
}

// maxPast is of how many endpoints that are gone the last row is kept.
const maxPast = 128

// NewRegistry returns an empty table.
func NewRegistry() *Registry {
	return &Registry{
		rows:         map[uint16]Endpoint{},
		byAttachment: map[string]uint16{},
		byAddr:       map[netip.Addr]uint16{},
		byIfName:     map[string]uint16{},
		byPod:        map[string]map[uint16]struct{}{},
		byContainer:  map[string]map[uint16]struct{}{},
	}
}

// insert adds a new row, choosing an ID if the row has none, and returns it. It fails with
// ErrExists, naming the other endpoint, if the row would break what always holds.
func (r *Registry) insert(row Endpoint) (Endpoint, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if row.ID != 0 {
		if _, taken := r.rows[row.ID]; taken {
			return row, fmt.Errorf("%w: ID %d is in use", ErrExists, row.ID)
		}
	}
	if id := row.AttachmentID(); id != "" {
		if other, taken := r.byAttachment[id]; taken {
			return row, fmt.Errorf("%w: CNI attachment %s is endpoint %d", ErrExists, id, other)
		}
	}
	for _, ip := range row.Addresses() {
		if other, taken := r.byAddr[ip]; taken {
			return row, fmt.Errorf("%w: address %s belongs to endpoint %d", ErrExists, ip, other)
		}
	}
	if other, taken := r.byIfName[row.IfName]; taken {
		return row, fmt.Errorf("%w: interface %s belongs to endpoint %d", ErrExists, row.IfName, other)
	}
	if row.ID == 0 {
		id, ok := r.freeNumber()
		if !ok {
			return row, fmt.Errorf("no endpoint ID is free: this node has %d endpoints", len(r.rows))
		}
		row.ID = id
	}
	r.rows[row.ID] = row
	if id := row.AttachmentID(); id != "" {
		r.byAttachment[id] = row.ID
	}
	for _, ip := range row.Addresses() {
		r.byAddr[ip] = row.ID
	}
	r.byIfName[row.IfName] = row.ID
	addTo(r.byPod, row.Pod(), row.ID)
	addTo(r.byContainer, row.ContainerID, row.ID)
	return row, nil
}

// freeNumber goes round all IDs, so that one that was just given back is not reused while
// logs and events still speak of its last owner.
func (r *Registry) freeNumber() (uint16, bool) {
	for range 65535 {
		r.next++
		if r.next == 0 {
			r.next = 1
		}
		if _, taken := r.rows[r.next]; !taken {
			return r.next, true
		}
	}
	return 0, false
}

// update replaces the row with what change returns, if it is there and change agrees. The
// attachment and ID of a row must stay as they are.
func (r *Registry) update(id uint16, change func(Endpoint) (Endpoint, bool)) (Endpoint, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	row, ok := r.rows[id]
	if !ok {
		return Endpoint{}, false
	}
	row, ok = change(row)
	if ok {
		r.rows[id] = row
	}
	return row, ok
}

// remove takes the row out. What became of it can be read for a while; see Past.
func (r *Registry) remove(id uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	row, ok := r.rows[id]
	if !ok {
		return
	}
	if len(r.past) == maxPast {
		r.past = slices.Delete(r.past, 0, 1)
	}
	r.past = append(r.past, row)
	delete(r.rows, id)
	delete(r.byAttachment, row.AttachmentID())
	for _, ip := range row.Addresses() {
		delete(r.byAddr, ip)
	}
	delete(r.byIfName, row.IfName)
	removeFrom(r.byPod, row.Pod(), id)
	removeFrom(r.byContainer, row.ContainerID, id)
}

// Get returns the row with the ID.
func (r *Registry) Get(id uint16) (Endpoint, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	row, ok := r.rows[id]
	return row, ok
}

// ByAddr returns the endpoint that has the address.
func (r *Registry) ByAddr(ip netip.Addr) (Endpoint, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	id, ok := r.byAddr[ip.Unmap()]
	if !ok {
		return Endpoint{}, false
	}
	return r.rows[id], true
}

// List returns all rows by ID.
func (r *Registry) List() []Endpoint {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]Endpoint, 0, len(r.rows))
	for _, row := range r.rows {
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Len returns how many endpoints there are.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.rows)
}

// ByContainer returns all endpoints of a container, by ID.
func (r *Registry) ByContainer(containerID string) []Endpoint {
	return r.members(r.byContainer, containerID)
}

func (r *Registry) members(index map[string]map[uint16]struct{}, key string) []Endpoint {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []Endpoint
	for id := range index[key] {
		out = append(out, r.rows[id])
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Find returns the endpoint a client named. If several match (the interfaces of one container)
// it is the one with the smallest ID. It fails with ErrNotFound.
func (r *Registry) Find(ref Ref) (Endpoint, error) {
	notFound := func() (Endpoint, error) {
		return Endpoint{}, fmt.Errorf("%w: %s", ErrNotFound, ref)
	}
	switch ref.Kind {
	case RefLocalID:
		if row, ok := r.Get(ref.Local); ok {
			return row, nil
		}
	case RefIP:
		if row, ok := r.ByAddr(ref.Addr); ok {
			return row, nil
		}
	case RefAttachment:
		r.mu.RLock()
		id, ok := r.byAttachment[ref.Text]
		row := r.rows[id]
		r.mu.RUnlock()
		if ok {
			return row, nil
		}
		// A client that knows no interface name means the container's only one.
		if rows := r.ByContainer(ref.Text); len(rows) > 0 {
			return rows[0], nil
		}
	case RefPodName:
		if rows := r.members(r.byPod, ref.Text); len(rows) > 0 {
			return rows[0], nil
		}
	case RefContainerID:
		if rows := r.ByContainer(ref.Text); len(rows) > 0 {
			return rows[0], nil
		}
	case RefContainerName:
		for _, row := range r.List() {
			if row.ContainerName == ref.Text {
				return row, nil
			}
		}
	}
	return notFound()
}

// Past returns the last row of an endpoint that is gone, the latest that a client may mean. It
// fails with ErrNotFound also if that was too many endpoints ago.
func (r *Registry) Past(ref Ref) (Endpoint, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, row := range slices.Backward(r.past) {
		is := false
		switch ref.Kind {
		case RefLocalID:
			is = row.ID == ref.Local
		case RefIP:
			is = slices.Contains(row.Addresses(), ref.Addr.Unmap())
		case RefAttachment:
			is = row.AttachmentID() == ref.Text || row.ContainerID == ref.Text
		case RefPodName:
			is = row.Pod() == ref.Text
		case RefContainerID:
			is = row.ContainerID == ref.Text
		case RefContainerName:
			is = row.ContainerName == ref.Text
		}
		if is {
			return row, nil
		}
	}
	return Endpoint{}, fmt.Errorf("%w: %s", ErrNotFound, ref)
}

// String renders the reference as the API spells it.
func (ref Ref) String() string {
	switch ref.Kind {
	case RefLocalID:
		return fmt.Sprintf("cilium-local:%d", ref.Local)
	case RefGlobalID:
		return "cilium-global:" + ref.Text
	case RefAttachment:
		return "cni-attachment-id:" + ref.Text
	case RefPodName:
		return "cep-name:" + ref.Text
	case RefIP:
		if ref.Addr.Is4() {
			return "ipv4:" + ref.Addr.String()
		}
		return "ipv6:" + ref.Addr.String()
	case RefContainerID:
		return "container-id:" + ref.Text
	case RefContainerName:
		return "container-name:" + ref.Text
	}
	return "docker-endpoint:" + ref.Text
}

func addTo(index map[string]map[uint16]struct{}, key string, id uint16) {
	if key == "" {
		return
	}
	if index[key] == nil {
		index[key] = map[uint16]struct{}{}
	}
	index[key][id] = struct{}{}
}

func removeFrom(index map[string]map[uint16]struct{}, key string, id uint16) {
	delete(index[key], id)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}
