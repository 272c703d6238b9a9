package daemon

import (
	"context"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// lateFamilies knows which families have not been synced since the start, and what the kernel had of them then.
type lateFamilies struct {
	mode     *modeSwitch
	unsynced func() []*policy.State // as Loop.Unsynced
	served   map[policy.Family]bool // as found when first asked for
}

// list returns the families that no sync has succeeded for, of which the kernel may serve addresses that are
// announced by BGP, as an earlier run left it. A host that was booted has nothing of that kind.
func (l *lateFamilies) list(ctx context.Context) (late []policy.Family) {
	for _, st := range l.unsynced() {
		served, known := l.served[st.Family]
		if !known {
			served = mayServe(ctx, l.mode.current().Name, st)
			if l.served == nil {
				l.served = make(map[policy.Family]bool)
			}
			l.served[st.Family] = served
		}
		if served {
			late = append(late, st.Family)
		}
	}
	return late
}

// lateTime is how long the kernel of a mode may take to tell what it has.
const lateTime = 2 * time.Second

// mayServe reports whether the kernel has something of a State, in whatever mode an earlier run was. Where the
// mode in use does not tell, it may.
func mayServe(ctx context.Context, inUse string, st *policy.State) bool {
	for _, m := range available {
		ctx, cancel := context.WithTimeout(ctx, lateTime)
		objects, err := m.Objects(ctx, st)
		cancel()
		present := slices.ContainsFunc(objects, func(o proxier.Object) bool { return o.Present })
		if present || err != nil && m.Name == inUse {
			return true
		}
	}
	return false
}
