package jinja

// LoopsOverContent tells whether the template takes a message's content apart
// itself, by vLLM's rule (_detect_content_format of renderers/hf.py, 0.32):
// there is a loop over the content of a loop variable over messages, over a
// variable named content outside of macros, or over a macro's parameter that is
// given such a content.
func (t *Template) LoopsOverContent() bool {
	found, ok := (&inspector{body: t.body}).contentLoop()
	return found && ok
}

// inspector looks at a template's tree. Scopes do not matter to vLLM's rule.
type inspector struct {
	body     []stmt
	messages []string // variables that hold messages
	message  []string // loop variables over them
}

// contentLoop is false with ok false where vLLM's rule gives up.
func (in *inspector) contentLoop() (found, ok bool) {
	if !in.findMessages() {
		return false, false
	}
	byLoop := map[*forStmt]map[string]bool{} // in a macro: its parameters that are content
	walk(in.body, func(s stmt) {
		m, isMacro := s.(*macroStmt)
		if !isMacro {
			return
		}
		params := in.contentParams(m)
		walk(m.body, func(s stmt) {
			if f, ok := s.(*forStmt); ok && (byLoop[f] == nil || len(params) > 0) {
				byLoop[f] = params
			}
		})
	})
	ok = true
	walk(in.body, func(s stmt) {
		f, isFor := s.(*forStmt)
		if !isFor || found || !ok {
			return
		}
		hit := anyOf(in.message, func(name string) bool { return accesses(f.iter, name, "content") })
		if name, isName := f.iter.(*nameExpr); !hit && isName {
			params, inMacro := byLoop[f]
			hit = params[name.name] || !inMacro && name.name == "content"
		}
		if hit {
			found, ok = f.target.list == nil, f.target.list == nil
		}
	})
	return found, ok
}

// findMessages follows messages through assignments and loops.
func (in *inspector) findMessages() bool {
	ok := true
	in.messages = []string{"messages"}
	for i := 0; i < len(in.messages) && i < maxNest; i++ {
		from := in.messages[i]
		walk(in.body, func(s stmt) {
			set, isSet := s.(*setStmt)
			if !isSet || !accesses(set.val, from, "") {
				return
			}
			if set.target.list != nil || set.target.attr != "" {
				ok = false
			} else if set.target.name != from {
				in.messages = append(in.messages, set.target.name)
			}
		})
	}
	walk(in.body, func(s stmt) {
		f, isFor := s.(*forStmt)
		if !isFor || !anyOf(in.messages, func(name string) bool { return accesses(f.iter, name, "") }) {
			return
		}
		if f.target.list != nil {
			ok = false
		} else {
			in.message = append(in.message, f.target.name)
		}
	})
	return ok
}

// contentParams are a macro's parameters that some call gives a content.
func (in *inspector) contentParams(m *macroStmt) map[string]bool {
	params := map[string]bool{}
	isContent := func(x expr) bool {
		return anyOf(in.message, func(name string) bool { return accesses(x, name, "content") })
	}
	walkExprs(in.body, func(x expr) {
		c, ok := x.(*callExpr)
		if !ok {
			return
		}
		if name, ok := c.fn.(*nameExpr); !ok || name.name != m.name {
			return
		}
		for i, a := range c.args {
			if i < len(m.params) && isContent(a) {
				params[m.params[i]] = true
			}
		}
		for i, name := range c.kwNames {
			if anyOf(m.params, func(p string) bool { return p == name }) && isContent(c.kwVals[i]) {
				params[name] = true
			}
		}
	})
	return params
}

func anyOf(names []string, ok func(string) bool) bool {
	for _, n := range names {
		if ok(n) {
			return true
		}
	}
	return false
}

// accesses tells whether x is the variable name, or its member key unless that
// is "", behind any filters, tests and slices.
func accesses(x expr, name, key string) bool {
	switch x := x.(type) {
	case *filterExpr:
		return accesses(x.x, name, key)
	case *testExpr:
		return accesses(x.x, name, key)
	case *sliceExpr:
		return accesses(x.x, name, key)
	case *nameExpr:
		return key == "" && x.name == name
	case *attrExpr:
		v, ok := x.x.(*nameExpr)
		return ok && key != "" && v.name == name && x.name == key
	case *itemExpr:
		v, ok := x.x.(*nameExpr)
		c, isConst := x.key.(constExpr)
		return ok && isConst && key != "" && v.name == name && c.v == key
	}
	return false
}

// walk visits statements in the order of the source.
func walk(body []stmt, visit func(stmt)) {
	for _, s := range body {
		visit(s)
		_, bodies := inside(s)
		for _, b := range bodies {
			walk(b, visit)
		}
	}
}

// walkExprs visits all expressions of a body.
func walkExprs(body []stmt, visit func(expr)) {
	walk(body, func(s stmt) {
		exprs, _ := inside(s)
		for _, x := range exprs {
			walkExpr(x, visit)
		}
	})
}

func walkExpr(x expr, visit func(expr)) {
	if x == nil {
		return
	}
	visit(x)
	for _, sub := range operands(x) {
		walkExpr(sub, visit)
	}
}

// inside returns a statement's expressions and bodies, captured ones too.
func inside(s stmt) (exprs []expr, bodies [][]stmt) {
	switch s := s.(type) {
	case *printStmt:
		exprs = []expr{s.x}
	case *ifStmt:
		return []expr{s.cond}, [][]stmt{s.then, s.otherwise}
	case *forStmt:
		return []expr{s.iter, s.cond}, [][]stmt{s.body, s.otherwise}
	case *setStmt:
		exprs = []expr{s.val}
	case *scopeStmt:
		for _, set := range s.sets {
			exprs = append(exprs, set.val)
		}
		bodies = [][]stmt{s.body}
	case *macroStmt:
		return s.defaults, [][]stmt{s.body}
	case *callStmt:
		return []expr{s.fn}, [][]stmt{s.body.body}
	}
	for _, x := range exprs {
		walkExpr(x, func(x expr) {
			if c, ok := x.(*captureExpr); ok {
				bodies = append(bodies, c.body)
			}
		})
	}
	return exprs, bodies
}

// operands are the parts of an expression, some of which may be nil.
func operands(x expr) []expr {
	switch x := x.(type) {
	case *listExpr:
		return x.items
	case *dictExpr:
		return append(append([]expr(nil), x.keys...), x.vals...)
	case *condExpr:
		return []expr{x.cond, x.then, x.otherwise}
	case *orExpr:
		return []expr{x.a, x.b}
	case *andExpr:
		return []expr{x.a, x.b}
	case *notExpr:
		return []expr{x.x}
	case *negExpr:
		return []expr{x.x}
	case *binaryExpr:
		return []expr{x.a, x.b}
	case *sumExpr:
		return x.parts
	case *compareExpr:
		return append([]expr{x.first}, x.rest...)
	case *attrExpr:
		return []expr{x.x}
	case *itemExpr:
		return []expr{x.x, x.key}
	case *sliceExpr:
		return []expr{x.x, x.from, x.to, x.step}
	case *callExpr:
		return append(x.call.operands(), x.fn)
	case *filterExpr:
		return append(x.call.operands(), x.x)
	case *testExpr:
		return append(append([]expr(nil), x.args...), x.x)
	}
	return nil
}

func (c *call) operands() []expr {
	out := append(append([]expr(nil), c.args...), c.kwVals...)
	return append(out, c.star, c.stars)
}
