package network

import "fmt"

// KeepPrograms has the programs of restored endpoints stay in charge if they work on other maps
// than this agent's: those of another layout, or maps whose pins were removed. They know the rules,
// identities and addresses that were in force; the new maps know nothing until everything has been
// observed. What is to be evaluated by the new maps before that is locked there (see
// enforcement.Policy).
func (n *Network) KeepPrograms() error {
	var pods []int
	for _, row := range n.cfg.Registry.List() {
		pods = append(pods, row.IfIndex)
	}
	kept, err := n.cfg.Programs.KeepOthers(pods)
	if err != nil {
		return fmt.Errorf("find the programs of before: %w", err)
	}
	if kept {
		n.cfg.Log.Info("the kernel's maps are new; the old programs and maps stay in force until the new ones are complete")
		n.setKeeping(true)
	}
	return nil
}

// ReplacePrograms puts this agent's programs in the place of the former ones, now that its maps
// hold everything.
func (n *Network) ReplacePrograms() {
	if !n.Keeping() {
		return
	}
	err := n.cfg.Programs.ReplaceOthers()
	n.cfg.Components.Report("programs", err, "the old programs and maps were replaced")
	if err != nil {
		n.cfg.Log.Error("some old programs and maps are still in force; trying again", "error", err)
		return
	}
	n.setKeeping(false)
	n.removeGuard()
	n.cfg.Log.Info("the old programs and maps were replaced")
}

// removeGuard removes what kept pods from addresses before the programs did.
func (n *Network) removeGuard() {
	if err := n.cfg.Links.RemoveGuard(); err != nil {
		n.cfg.Log.Warn("an nftables table of an earlier agent stays", "error", err)
	}
}

// Keeping reports whether the programs of an earlier agent are in charge.
func (n *Network) Keeping() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keeping
}

func (n *Network) setKeeping(keeping bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keeping = keeping
}
