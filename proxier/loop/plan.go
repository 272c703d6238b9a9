package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/proxier/report"
)

// planTime is how long a family may take to answer, its present Sync included.
const planTime = 20 * time.Second

// Plan returns what a sync of each family would change now, and changes nothing. It takes
// 20 s at most, and gives way to changes. It may be called from any goroutine.
func (l *Loop) Plan(ctx context.Context) (*report.Plan, error) {
	ctx, cancel := context.WithTimeout(ctx, planTime)
	defer cancel()
	l.mu.RLock()
	waiting, families, p := l.unread(), slices.Clone(l.families), &report.Plan{Edits: merged(l.batches)}
	l.mu.RUnlock()
	if len(waiting) > 0 {
		return nil, fmt.Errorf("nothing is planned before all services have been read: waiting for %s", strings.Join(waiting, ", "))
	}
	p.Families = make([]*report.FamilyPlan, len(families))
	var wg sync.WaitGroup
	for i, f := range families {
		wg.Go(func() { p.Families[i] = f.questions.ask(ctx, f.fam) })
	}
	wg.Wait()
	return p, nil
}
