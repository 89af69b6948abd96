package fake

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"syscall"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Programs keeps which set of programs is on which interface.
type Programs struct {
	node *Node

	mu       sync.Mutex
	cfg      datapath.Config
	set      int         // counts the sets loaded; 0 before Configure
	attached map[int]int // interface to set
}

var _ datapath.Programs = (*Programs)(nil)

// AttachEndpoint implements datapath.Programs.
func (p *Programs) AttachEndpoint(ifIndex int) error {
	if err := p.node.begin("Programs.AttachEndpoint", ifIndex); err != nil {
		return err
	}
	if !p.node.Links.present(ifIndex) {
		return fmt.Errorf("attach to interface %d: %w", ifIndex, syscall.ENODEV)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set == 0 {
		return errors.New("the programs are not loaded yet")
	}
	p.attached[ifIndex] = p.set
	return nil
}

// Attached implements datapath.Programs.
func (p *Programs) Attached(ifIndex int) (bool, error) {
	if err := p.node.begin("Programs.Attached", ifIndex); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	set, ok := p.attached[ifIndex]
	return ok && set == p.set, nil
}

// Configure implements datapath.Programs.
func (p *Programs) Configure(cfg datapath.Config) error {
	if err := p.node.begin("Programs.Configure", cfg); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set > 0 && reflect.DeepEqual(p.cfg, cfg) {
		return nil
	}
	p.cfg = cfg
	p.set++
	// What runs the old programs is switched over at once.
	for ifIndex := range p.attached {
		p.attached[ifIndex] = p.set
	}
	return nil
}

func (p *Programs) has(ifIndex int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attached[ifIndex] != 0
}

// Detach detaches the programs from an interface, as another process would.
func (p *Programs) Detach(ifIndex int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.attached, ifIndex)
}
