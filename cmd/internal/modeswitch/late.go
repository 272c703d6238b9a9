package modeswitch

import (
	"context"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Late returns the families of unsynced, which no sync has succeeded for, of which the kernel may serve addresses
// that are announced by BGP, as an earlier run left it. A host that was booted has nothing of that kind. One goroutine
// at a time calls it.
func (sw *Switch) Late(ctx context.Context, unsynced []*policy.State) (late []policy.Family) {
	for _, st := range unsynced {
		served, known := sw.served[st.Family]
		if !known {
			served = mayServe(ctx, sw.Current().Name, st)
			sw.served[st.Family] = served
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
	for _, m := range modes.All {
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
